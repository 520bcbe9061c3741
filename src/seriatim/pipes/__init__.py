"""Ordered pipes over any route, and chains that add up their guarantees.

chain.py                         elements one after another, a | b | c; and a watch that shows the guarantee that actually held
route.py                         what a route is; several that share a pipe
in_process.py, udp.py, topic.py  routes: inside this process, datagrams, a topic
pipe.py, endpoints.py            a sender and a receiver around a route; its two ends in an event loop
durable.py, epochs.py            ends that survive a crash; numbers that increase with every restart of an end
frames.py                        frames as bytes
ordered_processor.py             workers whose results stay in order
"""

from seriatim.core.guarantees import DeliveryMode, Guarantee, Level
from seriatim.core.pipes.protocol import OnFull, PipeKind, PipeOptions
from seriatim.pipes.chain import Chain, Element, Inlet, Watch
from seriatim.pipes.durable import Outbox, TopicOutput
from seriatim.pipes.epochs import ClockEpochs, FileEpochs, StoreEpochs
from seriatim.pipes.in_process import InProcess
from seriatim.pipes.ordered_processor import DROP, ordered_map
from seriatim.pipes.pipe import Pipe, indexed, resend, sequential
from seriatim.pipes.route import Multipath, Port, Route
from seriatim.pipes.topic import TopicRoute
from seriatim.pipes.udp import Udp

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
    "Multipath",
    "OnFull",
    "Outbox",
    "Pipe",
    "PipeKind",
    "PipeOptions",
    "Port",
    "Route",
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
