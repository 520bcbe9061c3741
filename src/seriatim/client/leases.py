"""Keeps leases alive while somebody works on their messages."""

from __future__ import annotations

import asyncio

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Attachment
from seriatim.errors import StaleLease

EXTEND_AT = 0.5
"""A lease is extended when this share of its time is over."""


class LeaseKeeper:
    """Extends the leases that it keeps by the subscription's ack deadline, up to ``max_extension`` seconds in all."""

    def __init__(self, attachment: Attachment, max_extension: float) -> None:
        self._attachment = attachment
        self._max_extension = max_extension
        self._loop = asyncio.get_running_loop()
        self._kept: dict[int, tuple[Lease, float]] = {}  # by token, with the time since when
        self._timer: asyncio.TimerHandle | None = None

    def keep(self, lease: Lease) -> None:
        self._kept[lease.token] = (lease, self._loop.time())
        self._set_timer()

    def drop(self, lease: Lease) -> None:
        self._kept.pop(lease.token, None)

    def close(self) -> None:
        self._kept.clear()
        if self._timer is not None:
            self._timer.cancel()

    def _set_timer(self) -> None:
        if self._timer is None and self._kept:
            self._timer = self._loop.call_later(self._attachment.ack_deadline * EXTEND_AT, self._extend_all)

    def _extend_all(self) -> None:
        self._timer = None
        now, seconds = self._loop.time(), self._attachment.ack_deadline
        for token, (lease, since) in list(self._kept.items()):
            try:
                if now + seconds - since > self._max_extension:
                    del self._kept[token]
                else:
                    self._attachment.extend(lease, seconds)
            except StaleLease:
                del self._kept[token]
        self._set_timer()
