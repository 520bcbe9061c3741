"""Which columns mean what."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class ColumnRoles:
    """The columns that matter. ``arrival`` gives the order of arrival, and copies are compared by ``payload``.

    A kernel is given both ready made: ``arrival`` is the time of arrival, in the unit of the options' times, and ``payload`` is
    one column with a digest of the payload.
    """

    key: str
    sequence: str
    arrival: str | None = None
    epoch: str | None = None
    payload: tuple[str, ...] = ()

    @property
    def time(self) -> str:
        """The column of arrival, where nothing can be done without one."""
        if self.arrival is None:
            raise InvalidArgument("there is no column with the times of arrival: name it, arrival=…")
        return self.arrival

    @property
    def digest(self) -> str | None:
        return self.payload[0] if self.payload else None
