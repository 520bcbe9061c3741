"""The topics and subscriptions of a store, by their names and numbers.

Rules
    - A change takes effect both in the store and in memory, or in neither: its part in memory is carried out by the commit's
      callback, in the same order as in the store. Cancelling the caller can't separate the two.
    - A subscription that is removed is closed, and all who wait for it get the reason.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from seriatim.core.text_checks import check_name
from seriatim.core.validation import require_kind, shown
from seriatim.engine.broker import RETIRED, SubscriptionInfo, TopicInfo, retired_name
from seriatim.engine.name_index import NameIndex
from seriatim.engine.options import SubscriptionOptions, TopicOptions, patched, read_topic_options, require_repaired
from seriatim.engine.subscription import SubscriptionState
from seriatim.engine.topic import TopicState
from seriatim.errors import AlreadyExists, DamagedStore, InvalidArgument, NotFound, StoreLost
from seriatim.store.base import Catalog, Cursor, MessageHeader, Record, SubscriptionRow, TopicRow, Transaction

if TYPE_CHECKING:
    from seriatim.engine.engine import Engine

T = TypeVar("T")


class Registry:
    """The topics and subscriptions that the engine knows."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.topics: dict[str, TopicState] = {}
        self.topics_by_id: dict[int, TopicState] = {}
        self.subscriptions: dict[str, SubscriptionState] = {}
        self._topic_names = NameIndex()
        self._subscription_names = NameIndex()
        self._being_created: dict[str, asyncio.Future[None]] = {}  # done when the store has answered

    # -- looking --------------------------------------------------------------------------------------------------------

    def topic(self, name: str) -> TopicState:
        try:
            return self.topics[name]
        except (KeyError, TypeError):
            raise NotFound(f"topic {shown(name)} does not exist: create it first") from None

    def subscription(self, name: str) -> SubscriptionState:
        try:
            return self.subscriptions[name]
        except (KeyError, TypeError):
            raise NotFound(f"subscription {shown(name)} does not exist: create it first") from None

    def topics_page(self, prefix: str, after: str | None, limit: int | None) -> list[TopicState]:
        return [self.topics[name] for name in self._topic_names.page(prefix, after, limit)]

    def subscriptions_page(
        self, topic: str | None, prefix: str, after: str | None, limit: int | None
    ) -> list[SubscriptionState]:
        names = self._subscription_names if topic is None else self.topic(topic).subscriptions
        return [self.subscriptions[name] for name in names.page(prefix, after, limit)]

    # -- changes, in the store and here ---------------------------------------------------------------------------------

    async def create_topic(self, name: str, options: TopicOptions) -> TopicInfo:
        check_name("Topic name", name)
        require_kind("options", TopicOptions, options)
        values = options.to_json()
        row = await self._change(lambda work: work.create_topic(name, values), self.add_topic)
        return TopicInfo(name, TopicOptions.from_json(row.options), 0, 0)

    async def update_topic(self, name: str, options: TopicOptions, fields: Sequence[str] | None = None) -> None:
        topic = self.topic(name)
        require_kind("options", TopicOptions, options)

        def update(work: Transaction) -> TopicOptions:
            before, flaws = read_topic_options(_named_topic(work, topic.id, name).options)
            require_repaired(f"topic {name!r}", flaws, fields)
            after = patched(before, options, fields)
            work.update_topic(topic.id, after.to_json())
            return after

        await self._change(update, topic.set_options)

    async def create_subscription(self, topic: str, name: str, options: SubscriptionOptions) -> SubscriptionInfo:
        """Create a subscription to messages published from now on. Its name is unique across topics."""
        check_name("Subscription name", name)
        log = self.topic(topic)
        require_kind("options", SubscriptionOptions, options)
        self._check_dead_letter_topic(log, options)
        while (creating := self._being_created.get(name)) is not None:  # then it is known whether the name is taken
            await asyncio.wait([creating])
        await self._create_subscription(log, name, options)
        return SubscriptionInfo(name, topic, options)

    def _create_subscription(
        self, topic: TopicState, name: str, options: SubscriptionOptions
    ) -> asyncio.Future[SubscriptionRow]:
        topic_name, values = topic.name, options.to_json()
        if name in self.subscriptions:
            raise AlreadyExists(f"subscription {name!r} already exists: choose another name")
        start, meanwhile = Cursor(topic.next_offset), _Meanwhile()
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def create(work: Transaction) -> SubscriptionRow:
            _named_topic(work, topic.id, topic_name)
            return work.create_subscription(topic.id, name, values, start)

        def created(row: SubscriptionRow) -> None:
            subscription = self.add_subscription(row, topic)
            subscription.start()
            subscription.push([record for record in meanwhile.records if record.offset >= start.floor])

        def is_over() -> None:
            del self._being_created[name]
            answered.set_result(None)
            topic.unfollow(meanwhile)

        creating = self._engine.commit().request(create, applied=created, is_over=is_over)
        topic.follow(meanwhile)
        self._being_created[name] = answered  # not the result, which its caller may cancel
        return creating

    async def update_subscription(
        self, name: str, options: SubscriptionOptions, fields: Sequence[str] | None = None
    ) -> None:
        """Change the options of a subscription. Outstanding leases finish first, if the lanes must be replaced."""
        subscription = self.subscription(name)
        require_kind("options", SubscriptionOptions, options)
        self._changed_options(subscription, options, fields, subscription.options)  # what can be refused is refused now
        await subscription.placement.reconfigure(partial(self._changed_options, subscription, options, fields), fields)

    def _changed_options(
        self,
        subscription: SubscriptionState,
        given: SubscriptionOptions,
        fields: Sequence[str] | None,
        current: SubscriptionOptions,
    ) -> SubscriptionOptions:
        require_repaired(f"subscription {subscription.name!r}", subscription.flaws, fields)
        options = replace(patched(current, given, fields), detached=current.detached)
        if options.filter != current.filter and "filter" not in subscription.flaws:
            raise InvalidArgument(
                f"the filter of subscription {subscription.name!r} can't be changed: create another subscription"
            )
        if options.dead_letter_topic != current.dead_letter_topic or fields is None:
            self._check_dead_letter_topic(subscription.topic, options)
        return options

    async def delete_subscription(self, name: str) -> None:
        """Delete a subscription, and with the last one of a retired topic also that topic."""
        subscription = self.subscription(name)
        topic = subscription.topic

        def delete(work: Transaction) -> bool:
            work.delete_subscription(subscription.id)
            is_last = work.topic(topic.id).name.startswith(RETIRED) and not work.has_subscriptions(topic.id)
            if is_last:
                work.delete_topic(topic.id)
            return is_last

        def deleted(is_last: bool) -> None:
            self.forget(subscription)
            if is_last:
                self.forget_topic(topic)

        try:
            await self._change(delete, deleted)
        except NotFound:  # the store knows it by its number
            raise NotFound(f"subscription {name!r} does not exist: it was just deleted") from None

    async def delete_topic(self, name: str) -> None:
        """Delete a topic, with its messages and its subscriptions."""
        topic = self.topic(name)

        def delete(work: Transaction) -> None:
            _named_topic(work, topic.id, name)
            work.delete_topic(topic.id)

        await self._change(delete, lambda _: self.forget_topic(topic))

    async def retire_topic(self, name: str) -> None:
        """Delete a topic, but keep its messages for its subscriptions."""
        topic = self.topic(name)
        retired = retired_name(topic.id, name)

        def retire(work: Transaction) -> bool:
            _named_topic(work, topic.id, name)
            if is_kept := work.has_subscriptions(topic.id):
                work.rename_topic(topic.id, retired)
            else:
                work.delete_topic(topic.id)
            return is_kept

        def applied(is_kept: bool) -> None:
            if is_kept:
                self.rename(topic, retired)
            else:
                self.forget_topic(topic)

        await self._change(retire, applied)

    def _check_dead_letter_topic(self, topic: TopicState, options: SubscriptionOptions) -> None:
        """It must exist when it is set. If it is deleted later, dead letters stay where they are."""
        if options.dead_letter_topic is None:
            return
        if self.topic(options.dead_letter_topic) is topic:
            raise InvalidArgument(
                f"topic {topic.name!r} can't be the dead-letter topic of its own subscription: "
                "what fails would come again for ever"
            )

    def _change(self, change: Callable[[Transaction], T], applied: Callable[[T], None]) -> asyncio.Future[T]:
        """Make a change in the next commit. It is applied here as soon as it is durable, even if the caller no longer waits."""
        return self._engine.commit().request(change, applied=applied)

    # -- changes here ---------------------------------------------------------------------------------------------------

    def add_topic(self, row: TopicRow) -> None:
        self._add_topic(TopicState(row))

    def _add_topic(self, topic: TopicState) -> None:
        self.topics[topic.name] = self.topics_by_id[topic.id] = topic
        self._topic_names.add(topic.name)

    def rename(self, topic: TopicState, name: str) -> None:
        self._remove_topic(topic)
        topic.name = name
        self._add_topic(topic)

    def forget_topic(self, topic: TopicState) -> None:
        self._remove_topic(topic)
        for name in topic.subscriptions.page():
            self.forget(self.subscriptions[name])

    def _remove_topic(self, topic: TopicState) -> None:
        del self.topics[topic.name], self.topics_by_id[topic.id]
        self._topic_names.remove(topic.name)

    def add_subscription(self, row: SubscriptionRow, topic: TopicState) -> SubscriptionState:
        subscription = SubscriptionState(row, topic, self._engine)
        self.subscriptions[row.name] = subscription
        self._subscription_names.add(row.name)
        topic.subscriptions.add(row.name)
        topic.follow(subscription)
        return subscription

    def forget(self, subscription: SubscriptionState) -> None:
        deleted = NotFound(f"subscription {subscription.name!r} was deleted")
        subscription.deliveries.report(deleted)
        subscription.close(deleted)
        subscription.outcomes.fail_waiting(deleted)
        subscription.topic.unfollow(subscription)
        subscription.topic.subscriptions.remove(subscription.name)
        self._subscription_names.remove(subscription.name)
        del self.subscriptions[subscription.name]

    def take(self, catalog: Catalog) -> None:
        """Adopt the contents of the store. Offsets of failed publishes are not assigned again."""
        rows = {row.id: row for row in catalog.topics}
        if any(known.next_offset < rows[known.id].next_offset for known in self.topics.values() if known.id in rows):
            raise StoreLost(
                "another process has published to the store since it failed: end this program, and start it again"
            )
        for topic in [known for known in self.topics.values() if known.id not in rows]:
            self.forget_topic(topic)
        for topic in [known for known in self.topics.values() if known.name != rows[known.id].name]:
            self.rename(topic, rows[topic.id].name)
        for row in catalog.topics:
            if row.id in self.topics_by_id:
                self.topics_by_id[row.id].update(row)
            else:
                self.add_topic(row)
        subscription_ids = {row.id for row in catalog.subscriptions}
        for gone in [known for known in self.subscriptions.values() if known.id not in subscription_ids]:
            self.forget(gone)
        for subscription_row in catalog.subscriptions:
            if (topic_of_it := self.topics_by_id.get(subscription_row.topic_id)) is None:
                raise DamagedStore(
                    f"the topic of subscription '{subscription_row.name}' is not in the store any more: run "
                    "'seriatim store check', and restore a backup"
                )
            if subscription_row.name not in self.subscriptions:
                self.add_subscription(subscription_row, topic_of_it)


class _Meanwhile:
    """Collects messages that are published while a subscription is being created."""

    def __init__(self) -> None:
        self.records: list[Record | MessageHeader] = []

    def push(self, records: Sequence[Record | MessageHeader]) -> None:
        self.records += records


def _named_topic(work: Transaction, topic_id: int, name: str) -> TopicRow:
    """A topic within a transaction. It may have been deleted or retired since it was looked up."""
    with suppress(NotFound):
        row = work.topic(topic_id)
        if row.name == name:
            return row
    raise NotFound(f"topic {name!r} does not exist: it was just deleted")
