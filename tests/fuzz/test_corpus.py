"""Every input of the corpus is read or refused, in bounded time and memory. Whatever fuzzing found is among them."""

from __future__ import annotations

import gc
import time
import tracemalloc

import pytest

from tests.fuzz.seeds import CORPUS, seeds
from tests.fuzz.targets import MAX_BYTES, MAX_INPUT, MAX_SECONDS, SERVED, TARGETS


@pytest.fixture(autouse=True)
def _closed():
    yield
    for target in SERVED:
        target.close()


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused_in_bounded_time(name):
    files = sorted((CORPUS / name).iterdir())
    assert files
    for path in files:
        TARGETS[name](path.read_bytes())  # what is imported and made once
    for path in files:
        began = time.perf_counter()
        TARGETS[name](path.read_bytes())
        assert time.perf_counter() - began < MAX_SECONDS, path.name


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_is_read_or_refused_in_bounded_memory(name):
    inputs = [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]
    TARGETS[name](inputs[0])  # what is made once
    gc.collect()
    tracemalloc.start()
    try:
        for content in inputs:
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            TARGETS[name](content)
            assert tracemalloc.get_traced_memory()[1] - before < MAX_BYTES
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TARGETS)
def test_the_corpus_has_valid_inputs(name):
    kept = {path.read_bytes() for path in (CORPUS / name).iterdir()}
    assert kept >= set(seeds()[name])
    assert all(len(content) <= 2 * MAX_INPUT for content in kept)
