"""What holds in every state of the lanes: their structure, and what a naive model of them says."""

from __future__ import annotations

from math import inf

from seriatim.core.lanes.lane import Lane, LaneState, LooseLane
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.tenants import TenantLanes
from seriatim.core.lanes.types import Delivery, Lease, RetryMode
from tests.core.lanes.naive_lanes import NaiveLanes, NaiveMessage

Key = str | None


def check_structure(lanes: Lanes, delivery: Delivery) -> None:
    """What the machine keeps twice agrees, and every message is in one place."""
    all_lanes = list(lanes._lanes.values())
    queued = [offset for lane in all_lanes for offset in (*lane.waiting, *(lane.aside or ()))]
    flying = [offset for lane in all_lanes for offset in lanes._out(lane)]
    gone = [offset for offset, (_, change) in lanes._unconfirmed.items() if change != "redriven"]
    buried = [at for dead in lanes._dead.values() for at in dead if at not in lanes._unconfirmed]
    places = queued + flying + gone + buried
    assert len(places) == len(set(places)), f"a message is in two places: {sorted(places)}"
    assert lanes._total == len(queued) + len(flying)
    assert lanes._in_flight == len(flying)
    assert lanes.ready_lanes == sum(lane.state is LaneState.READY for lane in all_lanes)
    assert lanes._troubles.keys() <= set(places) - set(buried), "troubles of messages that are gone"
    assert all(trouble.lane is lanes._lanes[trouble.lane.key] for trouble in lanes._troubles.values())
    for lane in all_lanes:
        _check_lane(lanes, lane, delivery)
    _check_schedules(lanes)
    ring = ring_of(lanes)
    assert len(ring) == len(set(ring)), "a lane stands in the ring twice"
    assert all(lane.in_ring for lane in ring)
    held = [(holder, lane) for holder, each in lanes._held.items() for lane in each]
    assert all(lane.is_held and lane.holder == holder for holder, lane in held)
    assert len(held) == sum(lane.is_held for lane in all_lanes)
    if isinstance(lanes, TenantLanes):
        _check_tenants(lanes)


def ring_of(lanes: Lanes) -> list[Lane]:
    """The lanes that wait for their turn, of whichever tenant."""
    tenants = lanes._tenants.values() if isinstance(lanes, TenantLanes) else ()
    return [*lanes._ring, *(lane for tenant in tenants for lane in tenant.ready)]


def _check_tenants(lanes: TenantLanes) -> None:
    standing = [tenant.name for tenant in lanes._standing]
    assert sorted(standing, key=str) == sorted((t.name for t in lanes._tenants.values() if t.stands), key=str)
    flying = [lane.key for lane in lanes._lanes.values() if lane.in_flight and lane.key is not None]
    assert sorted(flying) == sorted(key for tenant in lanes._tenants.values() for key in tenant.out)
    for name, tenant in lanes._tenants.items():
        assert all(lanes._name(key) == name for key in (*tenant.out, *(lane.key for lane in tenant.ready)))
        assert len(tenant.out) <= lanes._limit, "more in flight than the tenant may have"
        is_ready = any(lane.state is LaneState.READY for lane in tenant.ready)
        assert tenant.stands or not is_ready or len(tenant.out) == lanes._limit, "a tenant waits for its turn"
        assert name is None or tenant.ready or tenant.out or tenant.stands, "a tenant that has nothing is kept"


def _check_lane(lanes: Lanes, lane: Lane, delivery: Delivery) -> None:
    leases = leases_of(lanes, lane)
    assert lane.in_flight == sum(len(lease.offsets) for lease in leases)
    assert lane.pending == sum(changing is lane for changing, _ in lanes._unconfirmed.values())
    tokens = {token for token, lease in lanes._leased.items() if lease.key == lane.key}
    assert tokens | set(lane.acked or ()) == {lease.token for lease in leases}
    assert tokens.isdisjoint(lane.acked or ())
    is_ready = lane.state is LaneState.READY
    if lane.key is None:
        assert is_ready <= lane.in_ring, "a ready lane waits for its turn"
        return
    assert len(leases) <= delivery.window, "more leases than the window allows"
    if delivery.retry.mode is RetryMode.BLOCK:
        order = [*lanes._out(lane), *lane.waiting]
        assert order == sorted(order), f"out of order: {order}"
    assert lane.is_held is (is_ready and lane.in_flight > 0)
    assert is_ready <= (lane.in_ring or lane.is_held), "a ready lane waits for its turn"
    assert not lane.in_ring or lane in ring_of(lanes)
    assert lane.in_flight or lane.holder is None


def _check_schedules(lanes: Lanes) -> None:
    expiry, delays = lanes._expiry, lanes._delays
    for token, (when, moved) in deadlines_of(lanes).items():
        assert when >= lanes._now, "a lease outlived its deadline"
        assert not moved or (when, token) in expiry._heap
    assert list(expiry._times) == sorted(expiry._times)
    scheduled = {**delays._queue, **{offset: when for offset, (when, _, _) in delays._moved.items()}}
    for offset, when in scheduled.items():
        trouble = lanes._troubles[offset]
        assert when == trouble.not_before or trouble.spent
        assert offset in trouble.lane.waiting or offset in (trouble.lane.aside or ())


def check_naively(lanes: Lanes, model: NaiveLanes) -> None:
    """What the machine shows is what a look at every message says."""
    counts, keys = lanes.counts(), {m.key for m in model.messages} | {m.key for _, m in model.pending} | model.paused
    assert len(lanes) == counts.total == len(model.messages)
    assert counts.leased == sum(m.where in ("out", "acked") for m in model.messages)
    assert counts.total == counts.ready + counts.leased + counts.delayed + counts.blocked
    assert min(counts.ready, counts.delayed, counts.blocked) >= 0
    assert lanes.is_quiet() == (not counts.leased and not model.pending)
    assert set(lanes.keys()) == keys, "lanes that are empty, or messages without a lane"
    ready = dict(model.ready())
    for view in lanes.views():
        head = model.head(view.key)
        assert view.state is naive_state(model, view.key, ready), f"{view.key} is {view.state}"
        assert view.depth == len(model.of(view.key))
        assert view.head == (head.offset if head else None)
        assert lanes.offsets(view.key, 2) == [m.offset for m in model.of(view.key)][:2]
    _check_next_deadline(lanes, model)
    if isinstance(lanes, TenantLanes):
        assert {key for key in keys if lanes.full_tenant(key) is not None} == {
            key for key in keys if model.is_full(key)
        }
    for dead in model.dead:
        assert lanes.is_returnable(dead.key, dead.offset) == model.is_after_settled(dead)


def naive_state(model: NaiveLanes, key: Key, ready: dict[Key, int]) -> LaneState:
    if key in model.paused:
        return LaneState.PAUSED
    if key in ready:
        return LaneState.READY
    if model.of(key, "out", "acked"):
        return LaneState.LEASED
    if model.changing(key):
        return LaneState.SETTLING
    return LaneState.DELAYED if model.of(key) else LaneState.EMPTY


def _check_next_deadline(lanes: Lanes, model: NaiveLanes) -> None:
    """It is never later than what waits for its time, and never there for nothing."""
    waits = [when for when, _ in deadlines_of(lanes).values()]
    waits += [m.not_before for m in model.messages if m.where == "aside" and m.not_before > model.now]
    waits += [model.now for m in model.messages if m.where == "spent"]
    waits += [m.not_before for key in {m.key for m in model.messages} for m in _delayed_head(model, key)]
    may_wait = waits + [m.not_before for m in model.messages if m.not_before > model.now]
    deadline = lanes.next_deadline()
    assert deadline is not None or not waits, f"nobody notices {waits}"
    assert deadline is None or (may_wait and deadline <= min(waits, default=inf)), f"{deadline} and not {waits}"


def _delayed_head(model: NaiveLanes, key: Key) -> list[NaiveMessage]:
    """The head, when its time is all that its key waits for."""
    waiting = model.of(key, "waiting", "spent")[:1] if key is not None else []
    busy = len(model.of(key, "out", "acked")) + len(model.changing(key))
    free = key not in model.paused and busy < model.delivery.window
    return [m for m in waiting if free and m.where == "waiting" and m.not_before > model.now]


def deadlines_of(lanes: Lanes) -> dict[int, tuple[float, bool]]:
    """When each lease falls due, and whether that was moved."""
    expiry = lanes._expiry
    queued = dict(zip(expiry._tokens, expiry._times, strict=True))
    return {
        token: (expiry._moved[token], True) if token in expiry._moved else (queued[token], False)
        for token in lanes._leased
    }


def leases_of(lanes: Lanes, lane: Lane) -> list[Lease]:
    """The leases of a lane, live or acked provisionally, in the order in which they were given out."""
    return [lanes._lease_in(lane, token) for token in (lane.holders if isinstance(lane, LooseLane) else lane.flight)]
