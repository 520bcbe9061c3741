"""What all tests share: Hypothesis profiles, and a world without anybody's own settings.

``dev``     a quick look with fresh random examples, the default
``ci``      the same examples on every run and machine, so that a red build can be repeated; the default where CI=true
``soak``    many more, fresh examples (``make soak``)
``mutate``  few and fixed examples that are not shrunk, because mutation testing runs them once for every mutant
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import Phase, settings
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling

from seriatim import log

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, max_examples=200, derandomize=True, print_blob=True)
settings.register_profile("soak", deadline=None, max_examples=5_000, stateful_step_count=100, print_blob=True)
settings.register_profile(
    "mutate", deadline=None, max_examples=25, derandomize=True, phases=[Phase.explicit, Phase.generate]
)

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


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if SPARK in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group(SPARK))
    # The longest group begins first, so that the others do not wait for it at the end.
    items.sort(key=lambda item: SPARK not in [group.args[0] for group in item.iter_markers("xdist_group")])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One process more than there are cores: the one with the tests of Spark mostly waits."""
    return (os.cpu_count() or 1) + 1


@pytest.hookimpl(optionalhook=True)  # also without the plug-in, for mutation testing
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadGroupScheduling | None:
    """With ``--dist loadgroup`` groups stay together, and otherwise the tests of a module, which share what they make."""
    return ModulesTogether(config, log) if config.getoption("dist") == "loadgroup" else None


class ModulesTogether(LoadGroupScheduling):
    def _split_scope(self, nodeid: str) -> str:
        scope = super()._split_scope(nodeid)
        return nodeid.rpartition("::")[0] if scope == nodeid else scope
