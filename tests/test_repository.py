"""What must, and must not, stand in the repository's own files."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from functools import partial
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.needs import needs_program

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "requirements/dev.lock"
INTEGRATION_LOCK = ROOT / "requirements/integration.lock"
ORDERING_LOCK = ROOT / "requirements/ordering.lock"

# Written so that no pattern matches its own text.
REGISTRY_ADDRESSES = re.compile(r"pypi[.]org|pythonhosted[.]org|npmjs[.](?:org|com)|maven[.]org|/simple[/](?:\s|$)")
MADE_HERE = {".venv", "__pycache__", ".hypothesis", ".mypy_cache", ".pytest_cache", ".ruff_cache", "PKG-INFO"}
MACHINE_PATHS = re.compile(r"(?<![\w.~-])/(?:home|root|work|opt|Users)/[\w.]")


def repository_files() -> list[Path]:
    """Every file that is, or is about to be, under version control; in a source archive all that came with it."""
    if (ROOT / "PKG-INFO").exists():
        return [path for path in ROOT.rglob("*") if path.is_file() and not MADE_HERE & set(path.parts)]
    git = needs_program("git", hint="install git")
    command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def occurrences(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in repository_files()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]


def test_no_file_names_a_package_registry():
    assert occurrences(REGISTRY_ADDRESSES) == []


def test_no_file_names_a_path_of_somebodys_machine():
    assert occurrences(MACHINE_PATHS) == []


@pytest.mark.parametrize(
    "line",
    [
        "see https:/" + "/py" + "pi.org/project/x",
        "https:/" + "/files.python" + "hosted.org/x",
        "https:/" + "/x/sim" + "ple/",
    ],
)
def test_a_registry_address_would_be_found(line):
    assert REGISTRY_ADDRESSES.search(line)


@pytest.mark.parametrize(
    "line", ["/home" + "/ann/x", 'path = "/work' + '/main"', "file:///opt" + "/wheels", "(/root" + "/.x)"]
)
def test_a_path_of_a_machine_would_be_found(line):
    assert MACHINE_PATHS.search(line)


@pytest.mark.parametrize("lock", [LOCK, INTEGRATION_LOCK, ORDERING_LOCK], ids=lambda path: path.stem)
def test_the_lock_names_no_place_to_download_from(lock):
    text = lock.read_text()
    assert "://" not in text
    assert not re.search(r"^\s*(?:-i|-f|--(?!hash=))", text, re.MULTILINE)


def test_the_clients_of_other_servers_bring_no_other_version_of_what_is_locked_beside_them():
    locked, more = (
        dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock.read_text(), re.MULTILINE)) for lock in (LOCK, ORDERING_LOCK)
    )
    assert {name: version for name, version in more.items() if locked.get(name, version) != version} == {}


@pytest.mark.parametrize(("lock", "packages"), [(LOCK, 10), (INTEGRATION_LOCK, 2)], ids=["dev", "integration"])
def test_the_lock_pins_every_package_with_hashes(lock, packages):
    entries = re.split(r"\n(?=[a-z])", lock.read_text().partition("make lock\n")[2])
    assert len(entries) >= packages
    assert [
        entry for entry in entries if not re.match(r"[a-z0-9-]+==\S+ (?:; [^\\]+)?\\\n +--hash=sha256:", entry)
    ] == []


def test_the_lock_satisfies_the_project():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras, groups = settings["project"]["optional-dependencies"], settings["dependency-groups"]
    assert groups["dev"] == [{"include-group": group} for group in groups if group != "dev"]
    tools = [need for group, needs in groups.items() if group != "dev" for need in needs]
    needed = [Requirement(text) for text in chain(settings["project"]["dependencies"], *extras.values(), tools)]
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", LOCK.read_text(), re.MULTILINE))
    unmet = [str(need) for need in needed if locked.get(need.name, "0") not in need.specifier]
    assert unmet == [], "run `make lock`"


@pytest.mark.parametrize("script", [".ci/run", ".ci/repeat-failures", "requirements/lock"])
def test_scripts_can_be_executed(script):
    assert os.access(ROOT / script, os.X_OK)


FAILS_ONCE = """
from pathlib import Path

def test_that_fails_once():
    first = not Path("ran").exists()
    Path("ran").touch()
    assert not first
"""


@pytest.mark.parametrize(
    ("tests", "passes"),
    [
        (FAILS_ONCE, True),
        (FAILS_ONCE + "\ndef test_that_fails_always():\n    assert False\n", False),
        ("def test_that_passes():\n    pass\n", False),  # then something else than a test has failed
        ("".join(f"def test_{number}():\n    assert False\n" for number in range(4)), False),
    ],
    ids=["once", "always", "no test", "too many"],
)
def test_ci_repeats_failures_and_names_those_that_pass_then(tmp_path, tests, passes):
    (tmp_path / "test_it.py").write_text(tests)
    run = partial(
        subprocess.run,
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    run([sys.executable, "-m", "pytest", "."])
    done = run([ROOT / ".ci/repeat-failures", sys.executable])
    assert (done.returncode == 0) == passes, done.stdout + done.stderr
    assert ("UNSTABLE" in done.stdout and "test_it.py::test_that_fails_once" in done.stdout) == passes


def make(*args: str) -> subprocess.CompletedProcess[str]:
    command = [needs_program("make", hint="install make"), *args]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_make_help_explains_every_target():
    declared = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert declared is not None
    assert re.findall(r"^  make ([\w-]+) +\w", make("help").stdout, re.MULTILINE) == declared[1].split()


def test_an_old_or_missing_python_is_named_before_anything_is_made(tmp_path):
    done = make("lint", "PYTHON=no-such-python", f"VENV={tmp_path}/venv")
    assert done.returncode != 0
    assert "Seriatim needs Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "venv").exists()
