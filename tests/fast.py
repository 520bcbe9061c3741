"""The tests that ``make test-fast`` runs (``pytest --fast``): without Spark, without servers, in less than two minutes.

They are those of the folders below, and the modules beside them, except for what is marked as long or asks for a server. That
they begin no server and no Spark session is not taken on trust: whoever begins one asks ``refuse`` first.
"""

from __future__ import annotations

import pytest

FOLDERS = ("cli", "client", "core", "engine", "pipes", "store", "testing", "wire")
MODULES = (
    *(
        "architecture",
        "command_line",
        "config",
        "diagrams",
        "error_catalogue",
        "errors",
        "exports",
        "extras",
        "log",
        "needs",
    ),
    *("fast", "project", "proof"),
)
LONG = "soak"
"""The mark of tests that take many seconds each."""

chosen = False


def choose(config: pytest.Config) -> None:
    global chosen  # noqa: PLW0603  whoever begins a server has no pytest.Config at hand
    chosen = bool(config.getoption("--fast"))


def is_fast(item: pytest.Item) -> bool:
    first, *rest = item.path.relative_to(item.config.rootpath / "tests").parts
    in_place = first in FOLDERS if rest else first.removeprefix("test_").removesuffix(".py") in MODULES
    return in_place and item.get_closest_marker(LONG) is None and not _asks_for_a_server(item)


def _asks_for_a_server(item: pytest.Item) -> bool:
    fixtures: tuple[str, ...] = getattr(item, "fixturenames", ())
    return "postgres" in item.nodeid or not {"postgres_url", "spark", "mosquitto"}.isdisjoint(fixtures)


def refuse(what: str) -> None:
    """Fail the test where only fast ones are run."""
    if chosen:
        pytest.fail(f"a fast test begins {what}: leave it out in tests/fast.py", pytrace=False)
