"""Sparkplug: a host application that stores the messages of edge nodes in order, and the ordering service.

========================  =======================================================================
``OrderingService``       puts messages in order for your own host application; thread-safe
``NodeOrdering``          its options
``MessageOrderingService``  its interface, for implementations of your own
``EdgeMessage``, ``Kind``  what goes in
``Ordered``               what comes out
``payload``, ``topics``   Sparkplug's payloads and MQTT topics
``host``                  a host application over MQTT that stores everything in a topic
``connection``            the address of its broker, TLS, and errors of connecting
``captures``              captured or bridged MQTT traffic as columns, on Spark
========================  =======================================================================

Only ``host``, ``connection`` and ``payload`` need the extra ``mqtt``, and ``captures`` needs ``spark``.
"""

from __future__ import annotations

from seriatim.core.sparkplug.messages import (
    BeforeBirth,
    EdgeMessage,
    Flag,
    HeldMessage,
    Kind,
    NodeOrdering,
    NodeSnapshot,
    OnTimeout,
    Ordered,
    RebirthRequested,
    ReleasedBy,
    SequenceGap,
    Status,
    StatusChanged,
)
from seriatim.sparkplug.ordering_interface import (
    MessageOrderingService,
    PendingMessagesCallback,
    RebirthRequestCallback,
)
from seriatim.sparkplug.ordering_service import OrderingService
from seriatim.sparkplug.topics import NodeId

__all__ = [
    "BeforeBirth",
    "EdgeMessage",
    "Flag",
    "HeldMessage",
    "Kind",
    "MessageOrderingService",
    "NodeId",
    "NodeOrdering",
    "NodeSnapshot",
    "OnTimeout",
    "Ordered",
    "OrderingService",
    "PendingMessagesCallback",
    "RebirthRequestCallback",
    "RebirthRequested",
    "ReleasedBy",
    "SequenceGap",
    "Status",
    "StatusChanged",
]
