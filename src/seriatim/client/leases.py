"""Extends leases while their messages are being handled."""

from __future__ import annotations

import asyncio

from seriatim.core.lanes.types import Lease
from seriatim.engine.broker import Attachment
from seriatim.errors import SeriatimError

EXTEND_AFTER_SHARE = 0.5
"""A lease is extended after this share of its duration."""


class _KeptLease:
    """A lease, its deadline, and the limit of its extensions, in the time of the loop."""

    __slots__ = ("lease", "limit", "until")

    def __init__(self, lease: Lease, until: float, limit: float) -> None:
        self.lease = lease
        self.until = until
        self.limit = limit


class LeaseKeeper:
    """Extends the leases that it keeps by the subscription's ack deadline, up to ``max_extension`` seconds in all.

    It never shortens a lease, neither to the limit nor if it was extended for longer elsewhere.
    """

    def __init__(self, attachment: Attachment, max_extension: float) -> None:
        self._attachment = attachment
        self._max_extension = max_extension
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, _KeptLease] = {}  # by token
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, lease: Lease) -> None:
        now, seconds = self._loop.time(), self._attachment.ack_deadline
        self._kept[lease.token] = _KeptLease(lease, now + seconds, now + self._max_extension)
        self._wake_by(now + seconds * EXTEND_AFTER_SHARE)

    def extended(self, lease: Lease, seconds: float) -> None:
        """The lease's deadline was set elsewhere."""
        kept, now = self._kept.get(lease.token), self._loop.time()
        if kept is not None:
            kept.until = now + seconds
            self._wake_by(now + seconds * EXTEND_AFTER_SHARE)

    def drop(self, lease: Lease) -> None:
        self._kept.pop(lease.token, None)

    def close(self) -> None:
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _wake_by(self, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return  # it rings in time, and looks again then
            self._timer.cancel()
        self._timer = self._loop.call_at(when, self._extend_all)

    def _extend_all(self) -> None:
        self._timer = None
        now, seconds = self._loop.time(), self._attachment.ack_deadline
        for token, kept in list(self._kept.items()):
            until = min(now + seconds, kept.limit)
            try:
                if not self._attachment.holds(kept.lease):  # acked, and its handler still runs
                    kept.until = kept.limit
                elif until > kept.until:
                    self._attachment.extend(kept.lease, until - now)
                    kept.until = until
            except SeriatimError:  # it is lost, or nothing can be said any more
                del self._kept[token]
            else:
                if kept.until >= kept.limit:
                    del self._kept[token]
        if self._kept:
            self._wake_by(now + seconds * EXTEND_AFTER_SHARE)
