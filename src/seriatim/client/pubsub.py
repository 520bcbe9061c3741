"""``PubSub``: where the async API begins."""

from __future__ import annotations

from types import TracebackType

from seriatim.client.subscription import Subscription
from seriatim.client.topic import Topic
from seriatim.engine.broker import Broker, SubscriptionInfo, TopicInfo
from seriatim.engine.metrics import Metrics
from seriatim.engine.opening import open_broker
from seriatim.errors import FailedPrecondition


class PubSub:
    """Topics and subscriptions of one store. Use it as an async context manager."""

    def __init__(self, url: str = "memory://") -> None:
        self._url = url
        self._broker: Broker | None = None
        self._topics: dict[str, Topic] = {}
        self._subscriptions: dict[str, Subscription] = {}

    async def __aenter__(self) -> PubSub:
        self._broker = await open_broker(self._url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Wait for handlers that run and for what was published, and give the store back."""
        for subscription in self._subscriptions.values():
            await subscription.close()
        for topic in self._topics.values():
            await topic.close()
        broker, self._broker = self.broker, None
        await broker.close()

    @property
    def broker(self) -> Broker:
        """Whom everything is asked: an engine in this process, or a way to one elsewhere."""
        if self._broker is None:
            raise FailedPrecondition("this PubSub is not open: use it inside 'async with PubSub(...) as pubsub'")
        return self._broker

    def topic(self, name: str) -> Topic:
        """The topic of this name, whether it exists yet or not."""
        return self._topics.setdefault(name, Topic(self, name))

    def subscription(self, name: str) -> Subscription:
        """A subscription that exists. To create one, begin with its topic: ``topic.subscription(name)``."""
        return self._subscriptions.setdefault(name, Subscription(self, name, None))

    def subscription_of(self, topic: Topic, name: str) -> Subscription:
        known = self._subscriptions.get(name)
        if known is None or known.topic is None:
            known = self._subscriptions[name] = Subscription(self, name, topic)
        return known

    async def topics(self) -> list[TopicInfo]:
        """Every topic that exists."""
        return await self.broker.list_topics()

    async def subscriptions(self) -> list[SubscriptionInfo]:
        """Every subscription that exists, with its topic and its options."""
        return await self.broker.list_subscriptions()

    async def metrics(self) -> Metrics:
        """What was counted since the store was opened, and how every subscription stands. See ``Metrics.since`` for rates."""
        return await self.broker.metrics()
