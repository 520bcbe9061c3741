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

import importlib
import typing

if typing.TYPE_CHECKING:
    from seriatim.client.consumer import Consuming
    from seriatim.client.message import Message, PubSubMessage
    from seriatim.client.publisher import PublishOptions
    from seriatim.client.pubsub import PubSub
    from seriatim.client.queue import Queue
    from seriatim.core.batching import Batching
    from seriatim.core.delivery import OnExhausted, Release, RetryMode, RetryPolicy
    from seriatim.core.flow import FlowControl
    from seriatim.core.guarantees import Guarantee
    from seriatim.core.resequencer import Resequencer
    from seriatim.core.resequencers import Resequencers
    from seriatim.core.resequencing import LedgerEntry, Released, Resequencing, Start
    from seriatim.core.traces import classify
    from seriatim.errors import QueueEmpty, SeriatimError

__version__ = "0.1.0"

__all__ = [
    "Batching",
    "Consuming",
    "FlowControl",
    "Guarantee",
    "LedgerEntry",
    "Message",
    "OnExhausted",
    "PubSub",
    "PubSubMessage",
    "PublishOptions",
    "Queue",
    "QueueEmpty",
    "Release",
    "Released",
    "Resequencer",
    "Resequencers",
    "Resequencing",
    "RetryMode",
    "RetryPolicy",
    "SeriatimError",
    "Start",
    "__version__",
    "classify",
]

# Each name is loaded when it is first used: the command line answers without loading an engine.
_HOMES = {
    "Batching": "seriatim.core.batching",
    "Consuming": "seriatim.client.consumer",
    "FlowControl": "seriatim.core.flow",
    "Guarantee": "seriatim.core.guarantees",
    "LedgerEntry": "seriatim.core.resequencing",
    "Message": "seriatim.client.message",
    "OnExhausted": "seriatim.core.delivery",
    "PubSub": "seriatim.client.pubsub",
    "PubSubMessage": "seriatim.client.message",
    "PublishOptions": "seriatim.client.publisher",
    "Queue": "seriatim.client.queue",
    "QueueEmpty": "seriatim.errors",
    "Release": "seriatim.core.delivery",
    "Released": "seriatim.core.resequencing",
    "Resequencer": "seriatim.core.resequencer",
    "Resequencers": "seriatim.core.resequencers",
    "Resequencing": "seriatim.core.resequencing",
    "RetryMode": "seriatim.core.delivery",
    "RetryPolicy": "seriatim.core.delivery",
    "SeriatimError": "seriatim.errors",
    "Start": "seriatim.core.resequencing",
    "classify": "seriatim.core.traces",
}

if not typing.TYPE_CHECKING:  # type checkers see the imports above, and would take this to answer to any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'seriatim' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return [*globals(), *_HOMES]
