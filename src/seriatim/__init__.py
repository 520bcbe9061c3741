"""Seriatim keeps messages in order, per key: on the way in, in the middle, and on the way out."""

# The tree is the architecture. Each layer imports only what stands below it (tests/test_architecture.py enforces it).
#
#   cli/        commands, each imported when it is used
#   config.py   one configuration: file, environment, command line
#   log.py      one logger
#   extras.py   optional parts, and how a missing one is named
#   client/     PubSub, Topic, Subscription, Message, Queue
#   pipes/      routes, and pipes that make them ordered
#   sparkplug/  edge nodes over MQTT: an ordering service, and a host application
#   engine/     joins core and store: group commit, delivery
#   store/      where messages survive: memory, SQLite
#   testing/    clock, faulty network and reference models, for our tests and for yours
#   core/       PURE state machines that decide order: no IO, no clock, no threads, no randomness
#   errors.py   the one error tree

import typing

from seriatim.lazy import lazy_exports

if typing.TYPE_CHECKING:
    from seriatim.client.consumer import ConsumeOptions
    from seriatim.client.message import Message, PubSubMessage
    from seriatim.client.publisher import PublishOptions
    from seriatim.client.pubsub import PubSub
    from seriatim.client.queue import Queue
    from seriatim.client.subscription import Subscription
    from seriatim.client.topic import Topic
    from seriatim.core.lanes.types import RetryPolicy
    from seriatim.core.publishing.batching import Batching
    from seriatim.core.publishing.flow import FlowControl
    from seriatim.errors import SeriatimError

__version__ = "0.1.0"

__all__ = [
    "Batching",
    "ConsumeOptions",
    "FlowControl",
    "Message",
    "PubSub",
    "PubSubMessage",
    "PublishOptions",
    "Queue",
    "RetryPolicy",
    "SeriatimError",
    "Subscription",
    "Topic",
    "__version__",
]

# Names are imported on first use, so that the command line starts without loading an engine.
_HOMES = {
    "seriatim.client.consumer": ("ConsumeOptions",),
    "seriatim.client.message": ("Message", "PubSubMessage"),
    "seriatim.client.publisher": ("PublishOptions",),
    "seriatim.client.pubsub": ("PubSub",),
    "seriatim.client.queue": ("Queue",),
    "seriatim.client.subscription": ("Subscription",),
    "seriatim.client.topic": ("Topic",),
    "seriatim.core.lanes.types": ("RetryPolicy",),
    "seriatim.core.publishing.batching": ("Batching",),
    "seriatim.core.publishing.flow": ("FlowControl",),
    "seriatim.errors": ("SeriatimError",),
}

if not typing.TYPE_CHECKING:  # type checkers use the imports above; a __getattr__ would make them accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
