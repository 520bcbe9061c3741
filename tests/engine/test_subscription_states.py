"""The life of a subscription: its table, driven event by event."""

from __future__ import annotations

from itertools import product

import pytest

from seriatim.engine.subscription_states import TABLE, LifeEvent, LifeState, SubscriptionLife
from seriatim.errors import IllegalTransition, NotFound, StoreLost

LEGAL = {(state, event): target for state, event, target in TABLE}
PATHS: dict[LifeState, tuple[LifeEvent, ...]] = {
    LifeState.LOADING: (),
    LifeState.ACTIVE: (LifeEvent.LOAD,),
    LifeState.MOVING: (LifeEvent.LOAD, LifeEvent.MOVE),
    LifeState.STALLED: (LifeEvent.LOAD, LifeEvent.MOVE, LifeEvent.SUSPEND),
    LifeState.CLOSED: (LifeEvent.CLOSE,),
}


def life_in(state: LifeState) -> SubscriptionLife:
    life = SubscriptionLife()
    for event in PATHS[state]:
        life.step(event)
    assert life.state is state
    return life


@pytest.mark.parametrize(("state", "event"), LEGAL)
def test_a_legal_event_leads_where_the_table_says(state: LifeState, event: LifeEvent) -> None:
    life = life_in(state)
    assert life.step(event) is life.state is LEGAL[state, event]


@pytest.mark.parametrize(("state", "event"), sorted(set(product(LifeState, LifeEvent)) - set(LEGAL)))
def test_an_illegal_event_raises_and_changes_nothing(state: LifeState, event: LifeEvent) -> None:
    life = life_in(state)
    with pytest.raises(IllegalTransition, match=f"subscription: '{event}' is not possible while '{state}'"):
        life.step(event)
    assert life.state is state


def test_an_event_has_one_outcome() -> None:
    assert len(list(TABLE)) == len(LEGAL)


def test_a_store_that_fails_during_a_move_lets_it_go_on_afterwards() -> None:
    life = life_in(LifeState.MOVING)
    assert [life.step(event) for event in (LifeEvent.SUSPEND, LifeEvent.LOAD, LifeEvent.MOVED)] == [
        LifeState.STALLED,
        LifeState.MOVING,
        LifeState.ACTIVE,
    ]


def test_a_move_that_fails_while_the_store_is_away_waits_for_what_is_loaded() -> None:
    life = life_in(LifeState.STALLED)
    assert life.step(LifeEvent.MOVED) is LifeState.LOADING


def test_a_closed_subscription_says_why_and_the_first_reason_stays() -> None:
    life = life_in(LifeState.ACTIVE)
    life.require_open()
    life.close(NotFound("deleted"))
    life.close(StoreLost("closed"))
    with pytest.raises(NotFound, match="deleted"):
        life.require_open()
    assert life.state is LifeState.CLOSED
