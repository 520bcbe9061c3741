"""@google-cloud/pubsub from npm: the documents' acceptance criteria, those that this client can express.

The client opens five streams for each subscription and runs handlers of one key at once, so that order is the server's alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from seriatim.server.options import ServerOptions
from tests.server.node.client import node_command
from tests.server.served import server_in_thread

LONGEST = 120


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """What every scenario saw."""
    command = node_command("acceptance.js")
    with server_in_thread(options=ServerOptions(min_ack_deadline=1)) as server:
        environment = {**os.environ, "PUBSUB_EMULATOR_HOST": server.clients.address}
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LONGEST, check=True)
    return {line["name"]: line["result"] for line in map(json.loads, ended.stdout.splitlines())}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("ordering_001_key_is_accepted", "0"),
        ("ordering_002_same_key_in_order", ["first", "second", "third"]),
        ("ordering_003_one_at_a_time", 1),
        ("ordering_005_expired_comes_again_first", ["first", "first", "second"]),
        ("ordering_006_keyless_is_not_blocked", ["blocked", "unordered"]),
        ("ordering_007_each_subscription_has_its_order", [["first", "second"]] * 2),
        ("ordering_008_long_key_is_refused", [3, "Ordering key exceeds maximum length of 1024 bytes"]),
        ("ordering_009_key_without_enabling", "0"),
        ("nacked_comes_again_first", [*"0123345678", "9"]),
        ("publisher_005_flush", ["0", "1"]),
        ("publisher_006_batches_by_key", ["a1", "a2"]),
        ("publisher_007_flow_control", 15),
        ("publisher_010_empty_flush", "done"),
        ("message_too_large", [3, "Message size exceeds maximum of 10MB"]),
        ("exactly_once", "SUCCESS"),
        ("dead_letter_unblocks_its_key", [["before", *["poison"] * 5, "after"], ["poison"]]),
    ],
)
def test_what_the_documents_expect(results, name, expected):
    assert results[name] == expected


def test_different_keys_run_at_once(results):
    assert results["ordering_004_different_keys_at_once"] > 1


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("ordering_010_batches_with_keys", 20),
        ("publisher_001_default_batches", 50),
        ("publisher_002_time", 5),
        ("publisher_003_count", 10),
        ("publisher_004_size", 3),
        ("publisher_008_no_batches", 2),
        ("publisher_009_unique_ids", 100),
    ],
)
def test_every_message_gets_an_id_of_its_own(results, name, count):
    ids = results[name]["ids"]
    assert (len(ids), len(set(ids))) == (count, count)
    assert all(isinstance(id_, str) for id_ in ids)


def test_a_batch_waits_for_its_time_and_not_when_it_is_full(results):
    assert results["publisher_002_time"]["milliseconds"] >= 15
    assert results["publisher_003_count"]["milliseconds"] < 60_000


def test_no_scenario_is_forgotten(results):
    """Every one that there is has been looked at above."""
    source = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in results if f'"{name}"' not in source] == []
