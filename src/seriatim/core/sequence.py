"""Sequence spaces: the numbers that a source assigns, and which of them are ahead or behind.

Rules
    - A source counts up by ``increment``, either without end or modulo ``modulus``: then ``modulus - increment`` is
      followed by 0 again (as long as counting began at 0; any other start merely shifts the grid).
    - Unbounded numbers may be any integer, negative ones too. Under a modulus they are 0 to ``modulus - 1``.
    - A number is judged by its **distance from the expected number**, in steps of the increment. On a circle of ``span``
      numbers (``modulus / increment``) a distance below ``span / 2`` is ahead, any other is behind; 0 is the expected
      number itself. An even circle has one number exactly opposite, and it counts as behind.
    - So at most ``max_ahead`` messages can be held: beyond that, ahead cannot be told from behind.
    - A circle has at least 4 numbers: the minimum for one ahead that can be held, and two behind that continue each
      other.
    - A run of messages behind that continue each other means that **sync was lost** (``SyncWatch``).

Theory of operation
    Comparing two raw numbers on a circle ("a is before b when b is less than half the circle further on") is not an
    order: modulo 6, 0 is before 2 and 2 before 4, yet 4 is before 0. A sorted collection based on that comparison loses
    or misplaces entries as soon as it holds numbers from more than half of the circle. Distances from *one* point, the
    expected number, are plain integers, and plain integers sort.

    So the circle is **unwrapped on input**. ``unwrap(sequence, expected)`` turns a raw number into the one unbounded
    integer that is congruent to it and lies within half a circle of ``expected``, which is unwrapped itself. All
    internal code compares, sorts and subtracts unwrapped numbers and never uses the modulus; ``wrap`` converts them
    back to raw numbers for display and transmission. With expected 254 modulo 256, raw 255 unwraps to 255, raw 0 to
    256, raw 2 to 258, and raw 250 stays 250, behind: holes on both sides of the wrap are ordinary holes.

    Unwrapped neighbours are ``increment`` apart, so an unbounded space unwraps every number to itself.

    A message behind is normally a duplicate or late. But when source and receiver have drifted apart by more than half
    the circle (or the source restarted), *everything* looks behind, and in order: each message is one step after the
    previous. Late messages seldom do that. On a circle with fewer than ``limit`` numbers behind, such a run reaches the
    expected number before it is long enough to be reported, and is in sync again by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeGuard

from seriatim.errors import InvalidArgument, InvalidSequence

MIN_SPAN = 4


@dataclass(frozen=True, slots=True)
class SequenceSpace:
    """The numbers of one source: without end (``modulus=None``) or on a circle, ``increment`` apart."""

    modulus: int | None = None
    increment: int = 1

    def __post_init__(self) -> None:
        if not _is_integer(self.increment) or self.increment < 1:
            raise InvalidArgument(f"increment must be an integer of 1 or more, not {self.increment!r}")
        if self.modulus is not None:
            self._check_modulus(self.modulus)

    def _check_modulus(self, modulus: int) -> None:
        lowest = MIN_SPAN * self.increment
        if not _is_integer(modulus) or modulus < lowest:
            raise InvalidArgument(
                f"modulus must be an integer of {lowest} or more ({MIN_SPAN} steps of the increment), not {modulus!r}"
            )
        if modulus % self.increment:
            raise InvalidArgument(f"modulus {modulus} must be a multiple of the increment {self.increment}")

    @property
    def max_ahead(self) -> int | None:
        """The number of messages that can be ahead of the expected one; None if unlimited."""
        if self.modulus is None:
            return None
        return (self.modulus // self.increment - 1) // 2

    def validate(self, sequence: object) -> int:
        """Return ``sequence`` if a source may send it, otherwise raise InvalidSequence."""
        if not _is_integer(sequence):
            raise InvalidSequence(f"a sequence must be an integer, not {type(sequence).__name__} {sequence!r}")
        if self.modulus is not None and not 0 <= sequence < self.modulus:
            raise InvalidSequence(f"sequence {sequence} is outside 0 to {self.modulus - 1} (modulus {self.modulus})")
        return sequence

    def unwrap(self, sequence: int, expected: int) -> int:
        """The unbounded number of the validated raw ``sequence``, relative to the unwrapped ``expected``."""
        offset = sequence - expected
        if self.modulus is not None:
            offset %= self.modulus
            if 2 * offset >= self.modulus:
                offset -= self.modulus
        if offset % self.increment:
            raise InvalidSequence(
                f"sequence {sequence} is off the grid: it must differ from {self.wrap(expected)}"
                f" by a multiple of the increment {self.increment}"
            )
        return expected + offset

    def wrap(self, unwrapped: int) -> int:
        """The raw number of an unwrapped one."""
        return unwrapped if self.modulus is None else unwrapped % self.modulus

    def after(self, unwrapped: int) -> int:
        """The unwrapped number that follows ``unwrapped``."""
        return unwrapped + self.increment

    def distance(self, sequence: int, expected: int) -> int:
        """The number of steps from ``expected`` to ``sequence``: negative if it is behind, 0 if they are equal."""
        return (self.unwrap(sequence, expected) - expected) // self.increment


@dataclass(slots=True)
class SyncWatch:
    """Detects lost sync: ``limit`` messages behind, each of them one step after the previous.

    ``run`` and ``last`` are the whole state; pass them again to continue after a restart.
    """

    space: SequenceSpace
    limit: int = 3
    run: int = 0
    last: int | None = None

    def __post_init__(self) -> None:
        if not _is_integer(self.limit) or self.limit < 1:
            raise InvalidArgument(f"the limit of a sync watch must be an integer of 1 or more, not {self.limit!r}")

    def behind(self, unwrapped: int) -> bool:
        """Count a message behind; True if sync is lost, and the count restarts."""
        # Unwrapped numbers can be compared: a run that would pass the end of the circle reaches the expected one.
        continues = self.last is not None and unwrapped == self.space.after(self.last)
        self.run = self.run + 1 if continues else 1
        self.last = unwrapped
        lost = self.run >= self.limit
        if lost:
            self.reset()
        return lost

    def reset(self) -> None:
        """Reset the run: a message arrived that was not behind."""
        self.run = 0
        self.last = None


def _is_integer(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
