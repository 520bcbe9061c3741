"""Which column is the key, the sequence, the arrival, the epoch and the payload."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The roles of columns. ``arrival`` is the order of arrival, and ``payload`` is compared between copies.

    For a kernel both are prepared: ``arrival`` is a time, in the unit of the options, and ``payload`` is a single column with a
    digest.
    """

    key: str
    sequence: str
    arrival: str | None = None
    epoch: str | None = None
    payload: tuple[str, ...] = ()

    @property
    def time(self) -> str:
        """The arrival column. Raises if there is none."""
        if self.arrival is None:
            raise InvalidArgument("the arrival times are missing: name their column with arrival=…")
        return self.arrival

    @property
    def digest(self) -> str | None:
        """The column with the digest of the payload, if payloads are compared."""
        return self.payload[0] if self.payload else None
