"""What all tests share: Hypothesis profiles, and a world without anybody's own settings.

``dev``     a quick look with fresh random examples, the default
``ci``      the same examples on every run and machine, so that a red build can be repeated; the default where CI=true
``soak``    many more, fresh examples (``make soak``)
``fast``    few examples (``make test-fast``)
``mutate``  few and fixed examples that are not shrunk, because mutation testing runs them once for every mutant
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from seriatim import log
from tests import fast

# Other tests use the kits of the stores' contract too, and may import them first.
pytest.register_assert_rewrite("tests.store.contract", "tests.store.machine", "tests.store.script")

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=5_000, stateful_step_count=100, print_blob=True)
settings.register_profile("fast", deadline=None, max_examples=10, stateful_step_count=20, print_blob=True)
settings.register_profile(
    "mutate", deadline=None, max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.generate]
)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, bool | None, bool | None]:
    """What a test that failed left open must not be counted against the one that happens to run when it is collected."""
    failures = item.session.testsfailed
    is_run = yield
    if item.session.testsfailed > failures:
        collect_in_silence()
    return is_run


def collect_in_silence() -> None:
    """Collect what is garbage by now, also what hangs on the last error, without anybody hearing of what was not closed."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        if hasattr(sys, name):
            delattr(sys, name)
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        gc.collect()
    finally:
        sys.unraisablehook = hook


@pytest.fixture
def no_garbage_of_others() -> None:
    """For tests that look at what is collected: nothing of it is from tests before."""
    collect_in_silence()


SOAK_KILLS = int(os.environ.get("SOAK_KILLS", "0"))
"""How often the crash tests kill on each store in ``make soak``; 0: as often as they think fit."""

settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev"))

for variable in [name for name in os.environ if name.startswith("SERIATIM_")]:
    del os.environ[variable]


def fast_folder() -> str | None:
    """Where files are made that need not survive anything: in memory, if there is such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@pytest.fixture
def logger_as_it_was() -> Iterator[None]:
    """Undo what a test does to the logger, and to those of libraries."""
    loggers = [log.logger, *map(logging.getLogger, log.LIBRARIES)]
    states = [(one, one.handlers[:], one.level) for one in loggers]
    yield
    for one, handlers, level in states:
        one.handlers[:] = handlers
        one.setLevel(level)


@pytest.fixture
def postgres_url() -> str:
    """The address of a new store in a real PostgreSQL."""
    from tests import postgres  # only those who need the server load its library

    return postgres.server().new_url()


SPARK = "spark"
"""The group of the tests that use Spark, each of which would otherwise start a session in every process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--fast", action="store_true", help="only tests without Spark and servers (tests/fast.py)")


INTEGRATION = Path(__file__).parent / "integration"
"""Tests that are run only when they are asked for by name (``make test-integration``): they need another Spark, and Maven."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_asked_for = any(INTEGRATION in [(path := Path(arg).resolve()), *path.parents] for arg in config.args)
    return True if collection_path == INTEGRATION and not is_asked_for else None


def pytest_configure(config: pytest.Config) -> None:
    fast.choose(config)


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item], config: pytest.Config) -> None:
    if fast.chosen:
        config.hook.pytest_deselected(items=[item for item in items if not fast.is_fast(item)])
        items[:] = filter(fast.is_fast, items)
    for item in items:
        if SPARK in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(SPARK))
    # The longest group begins first, so that the others do not wait for it at the end.
    items.sort(key=lambda item: SPARK not in [group.args[0] for group in item.iter_markers("xdist_group")])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """A process for each core, and one more for the tests of Spark, which mostly wait."""
    return (os.cpu_count() or 1) + (not config.getoption("--fast"))


@pytest.hookimpl(optionalhook=True)  # also without the plug-in, for mutation testing
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """With ``--dist loadgroup`` groups stay together, and otherwise the tests of a module, which share what they make."""
    return ModulesTogether(config, log) if config.getoption("dist") == "loadgroup" else None


class ModulesTogether(LoadGroupScheduling):
    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.rpartition("::")[0] if scope == nodeid else scope
