"""Sparkplug edge nodes: their messages in order, over MQTT or from wherever you have them.

========================  =======================================================================
``OrderingService``       puts messages in order for your own host application; threads welcome
``NodeOrdering``          its options
``MessageOrderingService``  its interface, for implementations of your own
``EdgeMessage``, ``Kind``  what goes in
``Ordered``               what comes out
``payload``, ``topics``   what the bytes and the topics of Sparkplug mean
``host``                  a host application over MQTT that stores everything in a topic
``connection``            where its broker is, and whom it trusts
``captures``              captured or bridged traffic as columns, on Spark
========================  =======================================================================

Only ``host``, ``connection`` and ``payload`` need the extra ``mqtt``, and ``captures`` needs ``spark``.
"""

from __future__ import annotations

from seriatim.core.edge_messages import (
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
from seriatim.sparkplug.contract import MessageOrderingService, PendingMessagesCallback, RebirthRequestCallback
from seriatim.sparkplug.ordering import OrderingService
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
