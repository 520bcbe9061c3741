"""Limits for tenants, in every mode, and after a restart."""

from __future__ import annotations

from dataclasses import replace

import pytest

from seriatim.core.lanes.explanation import WaitsFor
from seriatim.errors import InvalidArgument
from tests.engine.conftest import ORDERED, Collector, prepare, publish

LIMITED = replace(ORDERED, tenant_limit=1)


def test_a_tenant_has_no_more_in_flight_than_its_limit_and_others_go_on(run) -> None:
    async def scenario(engine) -> None:
        await prepare(engine, LIMITED)
        for key in ("a/1", "a/2", "b/1"):
            await publish(engine, key, key=key)
        got = Collector()
        attachment = engine.attach("s", got.consumer)
        await got.wait(2)
        assert got.data == [b"a/1", b"b/1"]
        waits = await engine.explain("s", "a/2")
        assert (waits.waits_for, waits.since) == (WaitsFor.TENANT, (await engine.explain("s", "a/1")).since)
        attachment.ack(got.got[0].lease)
        attachment.ack((await got.wait(3))[2].lease)
        attachment.ack(got.got[1].lease)
        await engine.wait_until_empty("s")
        with pytest.raises(InvalidArgument, match="window of 1"):
            await engine.update_subscription("s", replace(ORDERED, window=2), ["window"])
        await engine.update_subscription("s", ORDERED, ["tenant_limit"])
        await publish(engine, "x", key="a/1")
        await publish(engine, "y", key="a/2")
        await got.wait(5)

    run(scenario)


async def one_after_the_other(broker) -> None:
    got = Collector()
    attachment = broker.attach("s", got.consumer)
    attachment.ack((await got.wait(1))[0].lease)
    await got.wait(2)


def test_after_a_restart(run_with_restarts) -> None:
    async def first(engine) -> None:
        await prepare(engine, LIMITED)
        await publish(engine, "1", key="a/1")
        await publish(engine, "2", key="a/2")

    run_with_restarts(first, one_after_the_other)


def test_from_another_process(run_linked) -> None:
    async def scenario(link, client) -> None:
        for key in ("a/1", "a/2"):
            await publish(link.engine, key, key=key)
        await one_after_the_other(client)

    run_linked(scenario, LIMITED)
