"""What strangers meet first: workflows, hooks, templates, changelog. They name commands and versions that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

import seriatim
from docs.site_hooks import REPOSITORY

ROOT = Path(__file__).parent.parent
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def read(path: Path | str) -> Any:
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def commands_of(workflow: Path) -> list[str]:
    return [step["run"] for job in read(workflow)["jobs"].values() for step in job["steps"] if "run" in step]


def targets() -> set[str]:
    declared = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    return set(declared[1].split())


def test_the_tests_run_on_every_supported_python():
    versions = read(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]["python"]
    supported = [name.rpartition(" ")[2] for name in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", name)]
    assert versions == supported
    assert PROJECT["requires-python"] == f">={supported[0]}"


def test_the_workflow_runs_what_ci_runs_and_nothing_else():
    setup, tests = commands_of(ROOT / ".github/workflows/tests.yml")
    assert setup.startswith("sudo apt-get")
    assert tests == 'sudo env "PATH=$PATH" .ci/run'


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_only_targets_that_exist_and_has_few_rights(workflow):
    called = {target for command in commands_of(workflow) for target in re.findall(r"\bmake ([a-z-]+)", command)}
    assert called <= targets()
    assert read(workflow)["permissions"]["contents"] == "read"
    assert all("timeout-minutes" in job or "needs" in job for job in read(workflow)["jobs"].values())


def test_the_hooks_are_valid_and_call_only_targets_that_exist():
    file = ROOT / ".pre-commit-config.yaml"
    subprocess.run([sys.executable, "-m", "pre_commit", "validate-config", file], check=True)
    (repository,) = read(file)["repos"]
    assert repository["repo"] == "local", "hooks from elsewhere would be fetched, and not be those in the lock"
    entries = {hook["entry"] for hook in repository["hooks"]}
    assert all(entry.partition(" ")[0] == "make" and entry.partition(" ")[2] in targets() for entry in entries)


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_a_form_for_issues_has_what_github_wants(name):
    form = read(f".github/ISSUE_TEMPLATE/{name}")
    assert {"name", "description", "body"} <= set(form)
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields)
    assert all(field["type"] in {"textarea", "input", "dropdown"} and field["attributes"]["label"] for field in fields)


def test_the_version_has_a_dated_section_below_what_is_unreleased():
    headings = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert headings[0] == "[Unreleased]"
    assert re.fullmatch(rf"\[{re.escape(seriatim.__version__)}\] - \d{{4}}-\d\d-\d\d", headings[1])


def test_the_readme_is_short():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    prose = re.sub(r"^```.*?^```|\]\([^)]*\)", "", readme, flags=re.DOTALL | re.MULTILINE)
    assert len([line for line in program.splitlines() if line.strip()]) <= 12
    assert len(prose.split()) <= 500
    assert readme.count("![") == 1


def test_one_address_of_the_project_is_used_everywhere():
    assert PROJECT["urls"]["Homepage"] == REPOSITORY
    assert read("mkdocs.yml")["site_url"] == PROJECT["urls"]["Documentation"]
    files = [
        "SECURITY.md",
        "mkdocs.yml",
        ".github/ISSUE_TEMPLATE/config.yml",
        "pyproject.toml",
        "README.md",
        "CONTRIBUTING.md",
    ]
    text = "".join((ROOT / file).read_text(encoding="utf-8") for file in files)
    ours = re.findall(r"https://(?:github\.com/[\w./-]*seriatim|[\w-]*\.github\.io)[\w./-]*", text)
    assert len(ours) > 5
    assert [url for url in ours if not url.startswith((REPOSITORY, PROJECT["urls"]["Documentation"]))] == []
