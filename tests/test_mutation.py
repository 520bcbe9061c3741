"""Mutation testing itself is run by hand; these tests keep its settings and its page true."""

from __future__ import annotations

import pytest

from bench import mutate

TARGETS = list(mutate.targets().values())


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_a_target_has_a_source_and_tests(target):
    assert (mutate.ROOT / target.path).is_file()
    assert target.tests
    assert all((mutate.ROOT / path.partition("::")[0]).exists() for path in target.tests + target.slow)


def test_every_module_of_the_core_is_a_target():
    modules = {path.stem for path in (mutate.ROOT / "src/seriatim/core").glob("*.py")} - {"__init__"}
    assert modules == {target.module for target in mutate.chosen(["core"])}


def test_the_page_is_written_from_the_results():
    assert mutate.PAGE.read_text() == mutate.page()


@pytest.mark.parametrize("package", mutate.packages())
def test_no_explanation_is_left_over(package):
    survivors = {(name, one.change) for name, result in mutate.results(package).items() for one in result.survivors}
    # Where there is no result so far, nothing can be said.
    explained = {place for place in mutate.explanations(package) if place[0] in mutate.results(package)}
    assert explained <= survivors
