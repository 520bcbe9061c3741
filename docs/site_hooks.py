"""What ``make site`` adds to the pages in this folder: an API reference, tables for diagrams, links out of the docs.

- The Python API gets its pages from the source (``docs/api_reference.py``).
- A diagram of a state machine becomes a table of its transitions: no browser draws Mermaid without a program from elsewhere.
- What a block of code says to the tests after its language is left out; the name of a file becomes its title.
- A link to a file of the repository that is not in the site leads to that file where the project is hosted.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs import api_reference
from docs.diagrams import BLOCK, TABLES

REPOSITORY = "https://github.com/seriatim/seriatim"
ROOT = Path(__file__).parent.parent
LINK = re.compile(r"(?<=\]\()(?!https?:|#)(?P<path>[^)#\s]+)(?P<rest>[^)]*)")
FENCED = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)
FENCE_INFO = re.compile(r"^```(?P<language>\w+) (?:file=(?P<file>\S+))?.*$", re.MULTILINE)


# -- events of MkDocs ---------------------------------------------------------------------------------------------------


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, content in api_reference.pages().items():
        files.append(File.generated(config, f"reference/api/{name}", content=content))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    with_tables = BLOCK.sub(lambda match: transitions(match["name"]), markdown)
    parts = FENCED.split(with_tables)  # every other one is code
    uri = page.file.src_uri
    return "".join(with_title(part) if index % 2 else with_links(part, uri) for index, part in enumerate(parts))


# -- diagrams, code and links -------------------------------------------------------------------------------------------


def transitions(table: str) -> str:
    events: dict[tuple[str, str], list[str]] = {}
    for state, event, target in TABLES[table]:
        events.setdefault((state.value, target.value), []).append(event.value)
    rows = [f"| {state} | {', '.join(labels)} | {target} |" for (state, target), labels in events.items()]
    return "\n".join(["| state | event | next state |", "|---|---|---|", *rows, ""])


def with_title(code: str) -> str:
    """A block that tests write to a file has that file's name as its title; other words for the tests are left out."""

    def info(fence: re.Match[str]) -> str:
        return f"```{fence['language']}" + (f' title="{fence["file"]}"' if fence["file"] else "")

    return FENCE_INFO.sub(info, code, count=1)


def with_links(prose: str, page: str) -> str:
    """Links to files of the repository that are not in the site lead to where the project is hosted."""

    def resolved(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), link["path"]))
        is_in_site = target.startswith("docs/") and Path(target).suffix in {".md", ".json", ".png", ".svg"}
        if is_in_site or not (ROOT / target).exists():
            return link[0]
        return f"{REPOSITORY}/{'tree' if (ROOT / target).is_dir() else 'blob'}/main/{target}{link['rest']}"

    return LINK.sub(resolved, prose)
