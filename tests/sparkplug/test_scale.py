"""A thousand edge nodes through a real broker: in order and complete."""

from __future__ import annotations

import pytest

from bench.sparkplug import measure


@pytest.mark.parametrize("receiver", ["ordered", "stored"])
def test_a_thousand_nodes_with_displaced_messages_are_in_order_and_complete(receiver, tmp_path):
    result = measure(receiver, nodes=1_000, messages=40, folder=tmp_path)
    assert result.dropped == 0
    assert result.ledger == {}
    assert len(result.out) == 1_000
    assert all(numbers == list(range(40)) for numbers in result.out.values())
