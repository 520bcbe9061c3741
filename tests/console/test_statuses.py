"""What pipelines and Sparkplug hosts leave in the store, and how the console shows it."""

from __future__ import annotations

import re
import threading
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from bench.console import leave_all_statuses
from seriatim.console import pages, samples
from seriatim.engine import reported_status
from seriatim.engine.engine import Engine
from seriatim.engine.reported_status import (
    MAX_GAP_KEYS,
    MAX_REPORT_BYTES,
    AuditedSide,
    BatchStatus,
    HeldKey,
    HostStatus,
    KeyGaps,
    MissingNumbers,
    NodeStatus,
    PipelineStatus,
    leave_audit,
    leave_status,
    take_rebirth_requests,
)
from tests.console.consoles import VIEWER, running

NOW = datetime(2026, 1, 18, 3, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _patience(monkeypatch):
    """A slow machine makes no host old."""
    monkeypatch.setattr(reported_status, "FRESH_S", 3600.0)


async def telling(engine: Engine) -> None:
    batches = [BatchStatus(n, NOW, 100, int(n == 7), 0, 2, 0) for n in range(9)]
    await leave_status(engine, PipelineStatus("readings", NOW, batches[:3], {}))
    gaps = KeyGaps("device-<b>4</b>", 1, 0, 2, 0, [BatchStatus(7, NOW, 0, 1, 0, 2, 0)])
    held = [HeldKey("device-5", 3, 17, 19, NOW), HeldKey("device-6", 1, 4, 4, NOW)]
    await leave_status(engine, PipelineStatus("readings", NOW, batches, {"lost": 1, "duplicate": 18}, [gaps], 4, held))
    node = NodeStatus("plant/press-4", "stale", NOW, 12, True, {"motor": "stale"}, True, [MissingNumbers(7, 9)])
    other = NodeStatus("yard/crane-1", "online", NOW, 0, False, {})
    await leave_status(engine, HostStatus("seriatim", "telemetry", NOW, True, [node, other], 2))
    await leave_status(engine, HostStatus("second", "telemetry", datetime.now(UTC), True, [node], 1))
    sides = [
        AuditedSide("before", 10, 900, 4, 12, 30, "none"),
        AuditedSide("after", 10, 884, 4, 0, 0, "strict"),
    ]
    await leave_audit(engine, "nightly", sides, "<script>steal()</script><p>The report.")
    await leave_audit(engine, "huge", sides, "x" * (MAX_REPORT_BYTES + 1))


def test_the_latest_status_of_each_program_is_shown(tmp_path):
    with running(tmp_path, telling) as console:
        (pipeline,) = console.api("pipelines/list").json
        assert (pipeline["ledger"], len(pipeline["batches"])) == ({"lost": 1, "duplicate": 18}, 9)
        page = console.ask("/pipelines").text
        assert "batch 7, 2026-01-18 03:00:00 UTC: 100 in order, 1 lost, 0 late, 2 duplicate, 0 other" in page
        assert page.count('<path class="lost"') == 2, "in the strip of all, and in that of the key"
        assert "device-&lt;b&gt;4&lt;/b&gt;" in page
        assert "numbers 17 to 19" in page
        assert "number 4<" in page
        host = console.api("sparkplug/list").json[1]
        assert (host["nodes"][0]["held"], host["nodes"][0]["gaps"]) == (12, [{"first": 7, "last": 9}])
        page = console.ask("/sparkplug").text
        assert "plant/press-4" in page
        assert page.index("Group plant, 1 node<") < page.index("7 to 9") < page.index("Group yard, 1 node<")
        assert page.count("at least <time") == 1, "when the host saw it first"
        assert "requested" in page
        assert "This host has said nothing since" in page


def test_nodes_that_need_attention_come_first_and_the_others_page_by_page(tmp_path):
    async def many(engine: Engine) -> None:
        devices = {f"d{n:02}": "online" for n in range(30)} | {"d29": "offline"}
        nodes = [NodeStatus(f"g{n % 2}/n-{n:03}", "online", NOW, 0, False, devices) for n in range(120)]
        nodes[70:72] = replace(nodes[70], status="offline"), replace(nodes[71], held=3)
        await leave_status(engine, HostStatus("plant", "telemetry", datetime.now(UTC), True, nodes, 120))

    with running(tmp_path, many) as console:
        pages = [re.findall(r"<code>g./(n-\d+)", console.ask("/sparkplug", page=page).text) for page in (1, 2, 3)]
        assert [len(page) for page in pages] == [50, 50, 20]
        assert {"n-070", "n-071"} <= set(pages[0])
        assert len({node for page in pages for node in page}) == 120
        first, last = (console.ask("/sparkplug", page=page).text for page in (1, 3))
        assert "120 edge nodes, 1 offline, 119 online." in first
        assert "Group g0, 60 nodes" in first
        assert ('rel="next"' in first, 'rel="next"' in last) == (True, False)
        found = console.ask("/sparkplug", search="-070").text
        assert re.findall(r"<code>g./(n-\d+)", found) == ["n-070"]
        assert ("d29 <" in found, "d20 <" in found, "and 20 more" in found) == (True, False, True)


def test_the_pages_of_the_largest_statuses_are_small_and_hold_up_nobody(tmp_path, monkeypatch):
    """Strips of thousands of columns are not drawn in the thread that delivers, and not again for each viewer."""
    drawn_in = list[str]()

    def watched(*given):
        drawn_in.append(threading.current_thread().name)
        return strip(*given)

    strip = pages.strip
    monkeypatch.setattr(pages, "strip", watched)
    monkeypatch.setattr(samples, "SPARED", 1_000_000)  # as long as results are shared at most
    with running(tmp_path, leave_all_statuses) as console:
        for path in ("/pipelines", "/pipelines", "/sparkplug"):
            assert len(console.ask(path).text) < 1024 * 1024, path
    assert len(drawn_in) == 3 * (1 + MAX_GAP_KEYS)
    assert "console" not in drawn_in, "the thread of the engine"


def test_the_verdict_of_an_audit_is_shown_before_and_after_and_its_report_can_do_nothing(tmp_path):
    with running(tmp_path, telling) as console:
        huge, nightly = console.api("pipelines/audits").json
        assert [side["guarantee"] for side in nightly["sides"]] == ["none", "strict"]
        assert (huge["has_report"], nightly["has_report"]) == (False, True)
        assert console.ask("/pipelines").text.count("Open the report") == 1
        report = console.api("pipelines/audit-report", name="nightly")
        assert report.text == "<script>steal()</script><p>The report."
        assert "sandbox" in report.headers["content-security-policy"]
        assert "script-src" not in report.headers["content-security-policy"]
        assert console.api("pipelines/audit-report", name="huge").status == 404
        assert console.api("pipelines/audit-report", name="nightly", token=None).status == 401


def test_a_rebirth_is_requested_of_a_host_that_is_there(tmp_path):
    with running(tmp_path, telling) as console:
        page = console.ask("/sparkplug").text
        assert page.count("Request a rebirth") == 1, "the other host is not there"
        assert "Request a rebirth" not in console.ask("/sparkplug", token=VIEWER).text
        asked = {"host": "second", "node": "plant/press-4"}
        assert console.api("sparkplug/rebirth", asked, token=VIEWER).status == 403
        assert console.run(lambda engine: take_rebirth_requests(engine, "second")) == []
        assert console.api("sparkplug/rebirth", asked).status == 200
        assert console.run(lambda engine: take_rebirth_requests(engine, "seriatim")) == []
        assert console.run(lambda engine: take_rebirth_requests(engine, "second")) == ["plant/press-4"]
        assert console.run(lambda engine: take_rebirth_requests(engine, "second")) == [], "it is obeyed once"
        assert console.api("sparkplug/rebirth", {"host": "seriatim", "node": "plant/press-4"}).status == 409
        assert console.api("sparkplug/rebirth", {"host": "second", "node": "plant/press-5"}).status == 404
        assert console.api("changes").json[-1]["operation"] == "sparkplug/rebirth"


def test_a_request_that_nobody_obeyed_in_time_is_forgotten(tmp_path, monkeypatch):
    with running(tmp_path, telling) as console:
        assert console.api("sparkplug/rebirth", {"host": "second", "node": "plant/press-4"}).status == 200
        monkeypatch.setattr(reported_status, "REQUEST_S", 0.0)
        assert console.run(lambda engine: take_rebirth_requests(engine, "second")) == []


def test_without_such_programs_the_pages_say_so(tmp_path):
    with running(tmp_path) as console:
        assert "No pipeline has left its status here" in console.ask("/pipelines").text
        assert "No host has left its status here" in console.ask("/sparkplug").text
