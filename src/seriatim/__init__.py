"""Seriatim keeps messages in order, per key: on the way in, in the middle, and on the way out."""

# The tree is the architecture. Each layer imports only what stands below it (tests/test_architecture.py enforces it).
#
#   cli/        commands, each imported when it is used
#   config.py   one configuration: file, environment, command line
#   log.py      one logger
#   extras.py   optional parts, and how a missing one is named
#   client/     PubSub, Topic, Subscription, Message
#   engine/     joins core and store: group commit, delivery
#   store/      where messages survive: memory, SQLite
#   testing/    clock, faulty network and reference models, for our tests and for yours
#   core/       PURE state machines that decide order: no IO, no clock, no threads, no randomness
#   errors.py   the one error tree

from seriatim.client.consumer import Consuming
from seriatim.client.message import Message, PubSubMessage
from seriatim.client.publisher import PublishOptions
from seriatim.client.pubsub import PubSub
from seriatim.core.batching import Batching
from seriatim.core.delivery import OnExhausted, Release, RetryMode, RetryPolicy
from seriatim.core.flow import FlowControl
from seriatim.core.guarantees import Guarantee
from seriatim.core.resequencer import Resequencer
from seriatim.core.resequencers import Resequencers
from seriatim.core.resequencing import LedgerEntry, Released, Resequencing, Start
from seriatim.core.traces import classify
from seriatim.errors import SeriatimError

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
