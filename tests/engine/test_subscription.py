"""A subscription by itself, in virtual time."""

from __future__ import annotations

from seriatim.engine.broker import SubscriptionInfo
from tests.engine.conftest import ORDERED, prepare


def test_a_subscription_says_what_it_is(run_memory):
    async def scenario(engine):
        subscription = await prepare(engine)
        assert subscription.info() == SubscriptionInfo("s", "t", ORDERED)
        assert subscription.consumers == 0

    run_memory(scenario)
