"""Resource names, ``projects/PROJECT/topics/ID``, and the names that a store knows things by.

Rules
    - One project is at home in a store. What belongs to it has its short name there, the ID, as if it had been made by an
      embedded program; so each sees what the other makes. Everything else has its whole resource name.
    - IDs have 3 to 255 letters, digits and ``-_.~+%``, begin with a letter, and not with ``goog``. What an embedded program
      named otherwise can't be named here, and is not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from seriatim.errors import InvalidArgument

WINDOW_LABEL = "seriatim-window"
"""The label of a subscription that says how many messages of a key may be in flight."""

_PROJECT = re.compile(r"projects/([A-Za-z0-9][A-Za-z0-9_.:-]{0,99})")
_RESOURCE = re.compile(rf"({_PROJECT.pattern})/([a-z]+)/([^/]+)")
_ID = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9_.~+%-]{2,254}")


class Names:
    """One kind of resource (``topics``, ``subscriptions``, ``snapshots``), by both of its names."""

    def __init__(self, kind: str, home: str) -> None:
        self._kind = kind
        self._home = f"projects/{home}"
        if not _PROJECT.fullmatch(self._home):
            raise InvalidArgument(f"{home!r} is not the name of a project")

    def in_store(self, resource: str) -> str:
        """The name in the store. Raises InvalidArgument when it is not a resource name of this kind."""
        found = _RESOURCE.fullmatch(resource)
        if found is None or found[3] != self._kind:
            raise InvalidArgument(f"{resource!r} is not a resource name: write projects/PROJECT/{self._kind}/ID")
        if not _ID.fullmatch(found[4]):
            raise InvalidArgument(
                f"{found[4]!r} is not an ID: use 3 to 255 letters, digits and -_.~+%, beginning with a letter, not with 'goog'"
            )
        return found[4] if found[1] == self._home else resource

    def of(self, name: str) -> str:
        """The resource name of something in the store."""
        return name if name.startswith("projects/") else f"{self._home}/{self._kind}/{name}"

    def listed(self, project: str, names: Iterable[str]) -> list[str]:
        """Which of the names in a store belong to a project, in the order of their resource names."""
        if not _PROJECT.fullmatch(project):
            raise InvalidArgument(f"{project!r} is not a project: write projects/PROJECT")
        return sorted((name for name in names if self._is_in(project, name)), key=self.of)

    def _is_in(self, project: str, name: str) -> bool:
        resource = self.of(name)
        return (
            resource.startswith(f"{project}/{self._kind}/") and _ID.fullmatch(resource.rpartition("/")[2]) is not None
        )
