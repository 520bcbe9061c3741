"""The documents' acceptance criteria on Kafka: the tests of every other store, with another ``run``.

``DIFFERENCES`` names the tests that can't hold there, and says why. Each of them must fail: one that passes is no difference.
"""

from __future__ import annotations

import pytest

from tests.client.test_map_of_queues import *  # noqa: F403
from tests.client.test_message_ordering import *  # noqa: F403
from tests.client.test_ordering_rules import *  # noqa: F403
from tests.client.test_publisher_rules import *  # noqa: F403

DIFFERENCES = {
    "test_mistakes_are_named": "that a topic does not exist is known when Kafka has answered: the future says so",
    "test_br_004_each_key_has_its_own_queue_in_every_subscription": "a skip is obeyed by the member that has the partition",
    "test_caveat_that_does_not_hold_items_can_be_removed_by_their_id": "a removal is obeyed by the partition's member",
    "test_example_high_throughput_publishing": "a topic has no single next offset, only its partitions have",
}


@pytest.fixture(autouse=True)
def _mark_differences(request: pytest.FixtureRequest) -> None:
    name = request.node.originalname
    if name in DIFFERENCES:
        request.applymarker(pytest.mark.xfail(reason=DIFFERENCES[name], strict=True))


def test_every_difference_is_a_test():
    assert set(DIFFERENCES) <= set(globals())


def test_every_module_about_a_document_is_run_here(pytestconfig: pytest.Config):
    modules = (pytestconfig.rootpath / "tests/client").glob("test_*.py")
    about = {f"tests.client.{path.stem}" for path in modules if path.read_text().startswith('"""Document ')}
    here = {value.__module__ for name, value in globals().items() if name.startswith("test_")}
    assert about == here - {__name__}
