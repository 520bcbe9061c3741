"""Lanes in groups: a limit of messages in flight per tenant, and fair turns between tenants.

Rules
-----
1. The tenant of a key is its part before the separator, ``acme`` for ``acme/order-7``, or the whole key without one.
   Keyless messages have no tenant and no limit.
2. At most ``limit`` messages of a tenant are in flight. At the limit, only its own ready lanes wait.
3. Tenants that have ready lanes and room form a ring and are served in turn, and so are the lanes of each: a tenant
   with a million ready keys delays another by one message per turn.
4. Everything else is as in ``lanes.py``; the window is 1, and batches have one message.
"""

from __future__ import annotations

from collections import deque
from math import inf

from seriatim.core.lanes.lane import Lane, LaneEvent, LaneState
from seriatim.core.lanes.lanes import Lanes
from seriatim.core.lanes.types import Delivery, Holder


class _Tenant:
    """The ready lanes of a tenant, in turn, and its keys in flight."""

    __slots__ = ("changed", "name", "out", "ready", "stands")

    def __init__(self, name: str | None) -> None:
        self.name = name
        self.ready: deque[Lane] = deque()
        self.out: set[str] = set()
        self.stands = False  # in the ring
        self.changed: float | None = -inf  # when it last reached its limit, or got room again; None if unknown


class TenantLanes(Lanes):
    """Lanes with a limit for each tenant."""

    _is_plain = False

    def __init__(self, delivery: Delivery, first_token: int = 1) -> None:
        super().__init__(delivery, first_token)
        assert delivery.tenant_limit is not None
        self._limit, self._separator = delivery.tenant_limit, delivery.tenant_separator
        self._tenants: dict[str | None, _Tenant] = {}
        self._standing: deque[_Tenant] = deque()

    def full_tenant(self, key: str | None) -> str | None:
        """The tenant of a key, if it has its maximum number of messages in flight."""
        tenant = self._tenants.get(self._name(key))
        return tenant.name if tenant is not None and len(tenant.out) >= self._limit else None

    def room_changed(self, key: str | None) -> float | None:
        tenant = self._tenants.get(self._name(key))
        return -inf if tenant is None else tenant.changed

    def _name(self, key: str | None) -> str | None:
        return None if key is None else key.partition(self._separator)[0]

    def _stand(self, tenant: _Tenant) -> None:
        if tenant.ready and not tenant.stands and len(tenant.out) < self._limit:
            tenant.stands = True
            self._standing.append(tenant)

    def _queue_up(self, lane: Lane) -> None:
        name = self._name(lane.key)
        tenant = self._tenants.get(name) or self._tenants.setdefault(name, _Tenant(name))
        lane.in_ring = True
        tenant.ready.append(lane)
        self._stand(tenant)

    def _next_lane(self, consumer: Holder, now: float) -> Lane | None:  # noqa: ARG002 - with a window of 1 no lane has a holder
        while self._standing:
            tenant = self._standing.popleft()
            tenant.stands = False
            while tenant.ready and tenant.ready[0].state is not LaneState.READY:
                tenant.ready.popleft().in_ring = False
            if not tenant.ready:
                self._forget(tenant)
                continue
            lane = tenant.ready.popleft()
            lane.in_ring = False
            if lane.key is not None:
                tenant.out.add(lane.key)
                tenant.changed = now if len(tenant.out) == self._limit else tenant.changed
            self._stand(tenant)
            return lane
        return None

    def _refresh(self, lane: Lane, event: LaneEvent, now: float | None) -> None:
        if not lane.in_flight:
            self._came_back(lane.key, now)
        super()._refresh(lane, event, now)

    def _came_back(self, key: str | None, now: float | None) -> None:
        """No message of a key is in flight any more: its tenant may have room again."""
        tenant = self._tenants.get(self._name(key))
        if tenant is not None and key in tenant.out:
            tenant.changed = now if len(tenant.out) == self._limit else tenant.changed
            tenant.out.discard(key)
            self._stand(tenant)
            self._forget(tenant)

    def _forget(self, tenant: _Tenant) -> None:
        if not tenant.ready and not tenant.out and not tenant.stands:
            del self._tenants[tenant.name]

    def _drop(self, lane: Lane) -> None:
        """Remove a drained lane."""
        del self._lanes[lane.key]
        if lane.in_ring:
            self._tenants[self._name(lane.key)].ready.remove(lane)  # the tenant is in the ring or full, so it is kept


def new_lanes(delivery: Delivery, first_token: int = 1) -> Lanes:
    """Create the lanes for these options."""
    return (Lanes if delivery.tenant_limit is None else TenantLanes)(delivery, first_token)
