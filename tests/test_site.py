"""The docs site: it builds without a warning, documents everything public, and fetches nothing from anywhere else."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
import zlib
from html.parser import HTMLParser
from pathlib import Path
from typing import get_type_hints

import pytest

from docs import api_reference, site_hooks
from docs.diagrams import TABLES
from seriatim import PubSub

ROOT = Path(__file__).parent.parent
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "audio": "src",
    "video": "src",
    "object": "data",
}
"""Elements whose address is fetched as soon as a page is read; a link's depends on its relation."""
FETCHED_RELATIONS = {"stylesheet", "preload", "preconnect", "dns-prefetch", "icon", "manifest", "modulepreload"}


class Requests(HTMLParser):
    """What a browser fetches for a page, and the elements that make Material's program fetch more."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()
        self.components: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.classes |= set(given.get("class", "").split())
        self.components.add(given.get("data-md-component", ""))
        if tag == "link" and FETCHED_RELATIONS & set(given.get("rel", "").split()):
            self.addresses.append(given["href"])
        elif tag in FETCHED and FETCHED[tag] in given:
            self.addresses.append(given[FETCHED[tag]])


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def documented(site: Path) -> set[str]:
    """The names in the site's inventory of Python objects: four lines of text, then the entries, compressed."""
    *_, entries = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.split(" ")[0] for line in zlib.decompress(entries).decode().splitlines()}


@pytest.mark.parametrize("module", api_reference.MODULES)
def test_everything_public_is_in_the_api_reference(site, module):
    public = {f"{module}.{name}" for name in importlib.import_module(module).__all__ if name != "__version__"}
    assert set(api_reference.public_paths(module)) == public
    assert public - documented(site) == set()
    overview = (site / "reference/api/index.html").read_text(encoding="utf-8")
    assert [name for name in public if f"#{name}" not in overview] == []


@pytest.mark.parametrize("method", [PubSub.topic, PubSub.subscription])
def test_what_public_methods_return_is_in_the_api_reference_too(site, method):
    returned = get_type_hints(method)["return"]
    assert f"{returned.__module__}.{returned.__qualname__}" in documented(site)


def test_reading_the_site_asks_no_other_host(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 100
    for page in pages:
        read = Requests()
        read.feed(page.read_text(encoding="utf-8"))
        elsewhere = [address for address in read.addresses if re.match(r"(?:\w+:)?//", address)]
        assert elsewhere == [], page
        # Material's own program would load Mermaid for the first, and ask GitHub about the project for the second.
        assert "mermaid" not in read.classes, page
        assert "source" not in read.components, page
    styles = "".join(style.read_text(encoding="utf-8") for style in site.rglob("*.css"))
    assert re.findall(r"@import[^;]*//[^;]*|url\(['\"]?(?:\w+:)?//[^)]*\)", styles) == []


def test_a_request_to_another_host_would_be_noticed():
    read = Requests()
    read.feed(
        '<link rel="preconnect" href="https://fonts.example"><script src="//cdn.example/x.js"></script><a href="https://x">'
    )
    assert read.addresses == ["https://fonts.example", "//cdn.example/x.js"]


@pytest.mark.parametrize("name", TABLES)
def test_a_diagram_becomes_a_table_with_every_transition(name):
    rows = [line.strip("| ").split(" | ") for line in site_hooks.transitions(name).splitlines()[2:]]
    transitions = {(state, event, target) for state, events, target in rows for event in events.split(", ")}
    assert transitions == {(state.value, event.value, target.value) for state, event, target in TABLES[name]}


@pytest.mark.parametrize(
    ("written", "shown"),
    [("toml file=x.toml", 'toml title="x.toml"'), ("sh not-run", "sh"), ("python", "python"), ("", "")],
)
def test_what_a_block_of_code_says_to_the_tests_is_not_shown(written, shown):
    assert site_hooks.with_title(f"```{written}\nx = 1\n```") == f"```{shown}\nx = 1\n```"


def test_no_block_of_code_is_shown_as_text(site):
    assert [page for page in site.rglob("*.html") if "```" in page.read_text(encoding="utf-8")] == []


def test_a_link_out_of_the_docs_leads_to_the_repository():
    prose = (
        "[a](../../examples/README.md) [b](../../src) [c](../reference/cli.md#x) [d](#y) [e](https://z) [f](no-such)"
    )
    linked = site_hooks.with_links(prose, "how-to/page.md")
    assert (
        f"[a]({site_hooks.REPOSITORY}/blob/main/examples/README.md) [b]({site_hooks.REPOSITORY}/tree/main/src) "
        in linked
    )
    assert linked.endswith("[c](../reference/cli.md#x) [d](#y) [e](https://z) [f](no-such)")
