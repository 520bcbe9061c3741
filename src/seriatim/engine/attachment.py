"""A consumer at work on a subscription of this process."""

from __future__ import annotations

from seriatim.core.delivery import Lease
from seriatim.engine.broker import Told
from seriatim.engine.consumer import Consumer
from seriatim.engine.subscription import SubscriptionState


class LocalAttachment:
    """What one consumer says about its messages goes straight to the subscription."""

    def __init__(self, subscription: SubscriptionState, consumer: Consumer) -> None:
        self._subscription = subscription
        self._consumer = consumer
        subscription.attach(consumer)

    @property
    def ack_deadline(self) -> float:
        return self._subscription.options.ack_deadline

    def holds(self, lease: Lease) -> bool:
        return self._consumer.leases.get(lease.offset) is lease

    def ack(self, lease: Lease, told: Told | None = None) -> None:
        self._subscription.ack(lease, told)

    def nack(self, lease: Lease, delay: float | None = None, error: str | None = None) -> None:
        self._subscription.nack(lease, delay, error)

    def extend(self, lease: Lease, seconds: float) -> None:
        self._subscription.extend(lease, seconds)

    def stop(self) -> None:
        self._consumer.stop()

    def detach(self) -> None:
        self._subscription.detach(self._consumer)
