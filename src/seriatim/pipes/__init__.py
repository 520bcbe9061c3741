"""Ordered pipes: any unordered route made ordered, and guarantees that add up.

chain.py      elements, one after another: a | b | c        watch.py       what actually held
route.py      what a route is                               pipe.py        a sender and a receiver around a route
local.py      inside this process                           ends.py        those two in an event loop
udp.py        datagrams                                     durable.py     ends that survive a crash
topic.py      a topic of the engine                         epochs.py      lives of an end
several.py    routes that share a pipe                      wire.py        frames as bytes
processor.py  workers whose results stay in order
"""

from seriatim.core.guarantees import DeliveryMode, Guarantee, Level
from seriatim.core.pipes import OnFull, PipeKind, PipeOptions
from seriatim.pipes.chain import Chain, Element, Inlet
from seriatim.pipes.durable import Outbox, TopicOutput
from seriatim.pipes.epochs import ClockEpochs, FileEpochs, StoreEpochs
from seriatim.pipes.local import InProcess
from seriatim.pipes.pipe import Pipe, indexed, resend, sequential
from seriatim.pipes.processor import DROP, ordered_map
from seriatim.pipes.route import Port, Route
from seriatim.pipes.several import Several
from seriatim.pipes.topic import TopicRoute
from seriatim.pipes.udp import Udp
from seriatim.pipes.watch import Watch

__all__ = [
    "DROP",
    "Chain",
    "ClockEpochs",
    "DeliveryMode",
    "Element",
    "FileEpochs",
    "Guarantee",
    "InProcess",
    "Inlet",
    "Level",
    "OnFull",
    "Outbox",
    "Pipe",
    "PipeKind",
    "PipeOptions",
    "Port",
    "Route",
    "Several",
    "StoreEpochs",
    "TopicOutput",
    "TopicRoute",
    "Udp",
    "Watch",
    "indexed",
    "ordered_map",
    "resend",
    "sequential",
]
