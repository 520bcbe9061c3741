"""Mutation testing itself is run by hand; these tests keep its settings and its page true."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench import mutate

TARGETS = list(mutate.targets().values())


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_a_target_has_a_source_and_tests(target):
    assert (mutate.ROOT / target.path).is_file()
    assert target.tests
    assert all((mutate.ROOT / path.partition("::")[0]).exists() for path in target.tests + target.slow)


def test_every_module_of_the_core_is_a_target():
    core = mutate.ROOT / "src/seriatim/core"
    modules = {path for path in core.rglob("*.py") if path.stem != "__init__"}
    assert {".".join(path.relative_to(core).with_suffix("").parts) for path in modules} == {
        target.module for target in mutate.chosen(["core"])
    }


def test_the_page_is_written_from_the_results():
    assert mutate.PAGE.read_text() == mutate.page(), "the results or the sources changed: run 'make docs'"


@pytest.mark.parametrize(
    ("source", "is_the_same"),
    [
        ('"""Words."""\n\nLIMIT = 3\n"""What it is."""\n\ndef f(x):\n    return x + 1\n', True),
        ('LIMIT = 3  # at most\n\n\ndef f(\n    x,\n):\n    """What it does."""\n    return x + 1\n', True),
        ("LIMIT = 4\ndef f(x):\n    return x + 1\n", False),
        ("LIMIT = 3\ndef f(x):\n    return x + 1.0\n", False),
        ("LIMIT = 3\ndef f(x):\n    return x - 1\n", False),
        ("LIMIT = 3\ndef f(x, y=None):\n    return x + 1\n", False),
        ("LIMIT = 3\ndef f(x):\n    return 'x + 1'\n", False),
    ],
)
def test_comments_and_docstrings_do_not_make_a_result_stale_and_code_does(source, is_the_same):
    known = mutate.fingerprint("LIMIT = 3\ndef f(x):\n    return x + 1\n")
    assert (mutate.fingerprint(source) == known) is is_the_same


def test_the_page_says_which_results_are_about_earlier_code(monkeypatch):
    kept = mutate.results("core")
    current = {name: replace(result, source=mutate.targets()[f"core.{name}"].source) for name, result in kept.items()}
    current["filters"] = replace(current["filters"], source="another")
    monkeypatch.setattr(mutate, "results", lambda package: current if package == "core" else {})
    page = mutate.page()
    assert f'Of {len(current)} results 1 are marked "changed"' in page
    assert [line.split("`")[1] for line in page.splitlines() if ", changed |" in line] == ["filters"]


def test_a_record_of_results_names_no_run_that_never_was(monkeypatch):
    written = {}
    monkeypatch.setattr(mutate, "write_record", lambda kind, **fields: written.update(fields))
    mutate.record(["core.ranges"])
    assert written["command"] == "collected from the modules' results: core.ranges"


@pytest.mark.parametrize("package", mutate.packages())
def test_no_explanation_is_left_over(package):
    survivors = {(name, one.change) for name, result in mutate.results(package).items() for one in result.survivors}
    # Where there is no result so far, nothing can be said.
    explained = {place for place in mutate.explanations(package) if place[0] in mutate.results(package)}
    assert explained <= survivors
