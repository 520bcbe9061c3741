"""For tests, ours and yours: pytest fixtures, virtual time, a Pub/Sub emulator, a faulty network.

A manual clock, an event loop with virtual time, a Pub/Sub server in this process, and a network and a route with seeded
faults. ``pytest_plugin`` has fixtures, which pytest finds by itself.
"""

from __future__ import annotations

import typing

from seriatim.lazy import lazy_exports

if typing.TYPE_CHECKING:
    from seriatim.testing.clock import ManualClock
    from seriatim.testing.emulator import PubSubEmulator
    from seriatim.testing.loop import VirtualTimeLoop, run_in_virtual_time
    from seriatim.testing.network import FaultyNetwork
    from seriatim.testing.route import FaultyRoute

__all__ = [
    "FaultyNetwork",
    "FaultyRoute",
    "ManualClock",
    "PubSubEmulator",
    "VirtualTimeLoop",
    "run_in_virtual_time",
]

# Names are imported on first use, because pytest loads this package for its fixtures in every run.
_HOMES = {
    "seriatim.testing.clock": ("ManualClock",),
    "seriatim.testing.emulator": ("PubSubEmulator",),
    "seriatim.testing.loop": ("VirtualTimeLoop", "run_in_virtual_time"),
    "seriatim.testing.network": ("FaultyNetwork",),
    "seriatim.testing.route": ("FaultyRoute",),
}

if not typing.TYPE_CHECKING:  # type checkers use the imports above; a __getattr__ would make them accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
