"""What is true about leases, whoever believes what.

A handler in a linked process may begin with a message whose lease was lost a moment ago, as long as the news is on its way:
that is not promised. Once the news has arrived, or the delivery was read together with it, no handler may begin.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from seriatim.engine.engine import EPOCH_BITS
from seriatim.engine.link.remote import RemoteAttachment, RemoteBroker
from seriatim.engine.subscription import SubscriptionState
from tests.simulation.loop import Process

Name = tuple[str, int]
"""The subscription and the token of a lease."""


class Leases:
    """When leases were lost, and when processes read of them."""

    def __init__(self, now: Callable[[], float], news_s: float) -> None:
        self._now = now
        self._news_s = news_s
        self._lost: dict[Name, float] = {}
        self._ended: dict[int, float] = {}  # by the epoch of an owner who died
        self._read: dict[Name, float] = {}
        self._names: dict[RemoteAttachment, str] = {}

    @contextmanager
    def observed(self) -> Iterator[None]:
        """Watch the real classes."""
        let_go, attach, deliver = SubscriptionState._let_go, RemoteBroker.attach, RemoteAttachment.deliver

        def note_loss(subscription: SubscriptionState, offset: int) -> Any:
            consumer, lease = let_go(subscription, offset)
            if lease is not None:
                self._lost[subscription.name, lease.token] = self._now()
            return consumer, lease

        def note_name(broker: RemoteBroker, subscription: str, consumer: Any) -> Any:
            attachment = attach(broker, subscription, consumer)
            assert isinstance(attachment, RemoteAttachment)
            self._names[attachment] = subscription
            return attachment

        def note_reading(attachment: RemoteAttachment, delivery: Any) -> None:
            name, now = self._names[attachment], self._now()
            self._read.update(((name, one.lease.token), now) for one in delivery.delivered)
            deliver(attachment, delivery)

        with (
            patch.object(SubscriptionState, "_let_go", note_loss),
            patch.object(RemoteBroker, "attach", note_name),
            patch.object(RemoteAttachment, "deliver", note_reading),
        ):
            yield

    def forget(self) -> None:
        """Let go of everything that belongs to a process."""
        self._names.clear()

    def owner_died(self, epoch: int) -> None:
        self._ended.setdefault(epoch, self._now())

    def lost_at(self, name: Name) -> float | None:
        """When a lease was lost; None while it holds."""
        known = self._lost.get(name)
        return self._ended.get(name[1] >> EPOCH_BITS) if known is None else known

    def could_know(self, name: Name, process: Process) -> bool:
        """Whether a process that begins with a message now could know that its lease is lost."""
        lost = self.lost_at(name)
        if lost is None or self._now() <= max(lost + self._news_s, process.deaf_until):
            return False
        if process.continued_at < self._now():
            return True
        # It was continued just now. That a connection is over is read after everything that came over it.
        return not process.has_lost_a_peer and self._read.get(name, self._now()) == self._now()
