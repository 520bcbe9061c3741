"""Parts for testing ordered systems without waiting and without luck.

A clock that is moved by hand, an event loop with virtual time, a network and a route with seeded faults, and naive
models of the core's machines.
"""

from __future__ import annotations

from seriatim.testing.clock import ManualClock
from seriatim.testing.loop import VirtualTimeLoop, run_in_virtual_time
from seriatim.testing.naive_lanes import NaiveLanes
from seriatim.testing.naive_resequencer import NaiveResequencer
from seriatim.testing.network import FaultyNetwork
from seriatim.testing.route import FaultyRoute

__all__ = [
    "FaultyNetwork",
    "FaultyRoute",
    "ManualClock",
    "NaiveLanes",
    "NaiveResequencer",
    "VirtualTimeLoop",
    "run_in_virtual_time",
]
