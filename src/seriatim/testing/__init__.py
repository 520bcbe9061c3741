"""Parts for testing ordered systems without waiting and without luck: a clock moved by hand, a network with seeded faults."""

from __future__ import annotations

from seriatim.testing.clock import ManualClock
from seriatim.testing.network import FaultyNetwork

__all__ = ["FaultyNetwork", "ManualClock"]
