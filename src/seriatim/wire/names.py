"""Resource names, ``projects/PROJECT/topics/ID``, and the corresponding names in the store.

Rules
    - One project is the home project of a store. Its resources are stored under their short names, the IDs, as if an embedded
      program had created them, so embedded programs and clients share them. All others are stored under their full names.
    - IDs have 3 to 255 letters, digits and ``-_.~+%``, begin with a letter, and not with ``goog``. Other names, which embedded
      programs may use, have no resource name, and are not listed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from seriatim.errors import InvalidArgument

WINDOW_LABEL = "seriatim-window"
"""The label of a subscription with the maximum number of messages in flight per key."""

KEEP_LABEL = "seriatim-keep"
"""The label of a subscription that says which waiting messages of a key are delivered: all, or the latest."""

RELEASE_ON_CLOSE = ("seriatim-on-close", "release")
"""Metadata of a StreamingPull whose client has acked everything when it ends the stream: the rest is released at once."""

_PROJECT = re.compile(r"projects/([A-Za-z0-9][A-Za-z0-9_.:-]{0,99})")
_RESOURCE = re.compile(rf"({_PROJECT.pattern})/([a-z]+)/([^/]+)")
_ID = re.compile(r"(?!goog)[A-Za-z][A-Za-z0-9_.~+%-]{2,254}")


class Names:
    """Converts the names of one kind of resource (``topics``, ``subscriptions``, ``snapshots``)."""

    def __init__(self, kind: str, home: str) -> None:
        self._kind = kind
        self._home = f"projects/{home}"
        if not _PROJECT.fullmatch(self._home):
            raise InvalidArgument(f"{home!r} is not the name of a project")

    def in_store(self, resource: str) -> str:
        """The name in the store. Raises InvalidArgument if this is not a resource name of this kind."""
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
        return name if self.is_whole(name) else f"{self._home}/{self._kind}/{name}"

    def listed(self, project: str, names: Iterable[str]) -> list[str]:
        """Which of the names in a store belong to a project, in the order of their resource names."""
        self._prefix(project)
        return sorted((name for name in names if self.is_in(project, name)), key=self.of)

    def ranges(self, project: str, after: str) -> list[tuple[str, str | None]]:
        """Where in a store the names of a project are that come after a resource name: prefixes, each with the name in the
        store to begin after. Those of the home project may have short names and whole ones."""
        prefix = self._prefix(project)
        ranges: list[tuple[str, str | None]] = [(prefix, after or None)]
        if project == self._home and after < f"{prefix}\U0010ffff":
            ranges.append(("", after.removeprefix(prefix) or None if after.startswith(prefix) else None))
        return ranges

    def next_after(self, prefix: str, name: str) -> str:
        """What to begin after, when a name within a range was the last. Short names are not among the whole ones."""
        return "projects/\U0010ffff" if not prefix and self.is_whole(name) else name

    @staticmethod
    def is_whole(name: str) -> bool:
        """Whether a name in the store is a whole resource name."""
        return name.startswith("projects/")

    def _prefix(self, project: str) -> str:
        if not _PROJECT.fullmatch(project):
            raise InvalidArgument(f"{project!r} is not a project: write projects/PROJECT")
        return f"{project}/{self._kind}/"

    def is_in(self, project: str, name: str) -> bool:
        resource = self.of(name)
        return (
            resource.startswith(f"{project}/{self._kind}/") and _ID.fullmatch(resource.rpartition("/")[2]) is not None
        )
