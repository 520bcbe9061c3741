"""Binds a state to its query, its partition count, and the meaning of its keys, numbers and times (``binding.json``).

A state that is bound to another query, count or meaning is refused, with an error that says what happened.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field

from seriatim.errors import DamagedStore, StateMismatch
from seriatim.spark.state.files import TEMPORARY, Files

BINDING = "binding.json"
PAYLOAD, ZONE = "payload", "zone"
"""What the meaning of a state calls the columns that are compared, and the time zone in which times without one are read."""
REMEDY = (
    "restore the state folder and the query's checkpoint from the same moment, or start over with an empty state folder and a "
    "new checkpoint"
)


@dataclass(frozen=True)
class Binding:
    """The owner of a state. ``meaning`` has what must not change: which columns are used, and how numbers count."""

    query: str
    partitions: int
    meaning: dict[str, str] = field(default_factory=dict)


def read_binding(files: Files) -> Binding | None:
    """The owner of the state; None when there is no state."""
    content = files.read(BINDING)
    if content is None:
        return None
    try:
        return Binding(**json.loads(content))
    except (ValueError, TypeError):
        raise DamagedStore(f"{files.root}/{BINDING} is damaged: {REMEDY}") from None


def write_binding(files: Files, binding: Binding) -> None:
    files.write(BINDING, _as_json(binding))


def _as_json(binding: Binding) -> bytes:
    return json.dumps(asdict(binding), sort_keys=True).encode()


def require_bound(files: Files, own: Binding, batch: int) -> None:
    """Refuse a state folder that is not this query's. Before batch 0 it becomes this query's, if it is empty."""
    bound = read_binding(files) or (_bind_new(files, own) if batch == 0 else None)
    if bound is None:
        raise StateMismatch(
            f"there is no state in {files.root}, but batch {batch} continues from batch {batch - 1}: {REMEDY}"
        )
    if bound.query != own.query:
        raise StateMismatch(
            f"the state in {files.root} belongs to the query {bound.query}, and this is {own.query} "
            f"(its checkpoint was deleted, copied or is another's): {REMEDY}"
        )
    if bound.partitions != own.partitions:
        raise StateMismatch(
            f"the state in {files.root} has {bound.partitions} partitions, and the query runs with "
            f"{own.partitions}: start it again, or, to change the count, stop it and run 'seriatim pipeline state "
            f"repartition {files.root} --partitions {own.partitions}'"
        )
    require_same_meaning(files.root, bound.meaning, own.meaning)


def _bind_new(files: Files, own: Binding) -> Binding:
    """Make the folder this query's, unless another task was faster; returns the owner."""
    strangers = [name for name in files.names("") if name != BINDING and TEMPORARY not in name]
    if not strangers:
        files.write_new(BINDING, _as_json(own))
    bound = read_binding(files)
    if bound is None:
        raise StateMismatch(
            f"{files.root} is not empty (there is {strangers[0]}), and nothing says that it is this query's state: "
            "name an empty folder"
        )
    return bound


def require_same_meaning(root: str, bound: Mapping[str, str], own: Mapping[str, str]) -> None:
    """Refuse to go on from a state in which keys, numbers, times or payloads mean something else."""
    if ZONE in own and ZONE not in bound:  # it was not always noted
        own = {name: value for name, value in own.items() if name != ZONE}
    if bound == own:
        return
    if PAYLOAD in own and PAYLOAD not in bound:
        raise StateMismatch(
            f"the state in {root} was not made with on_duplicate='conflict' (or by a version that did not note which columns "
            "it compared): the waiting rows have no digest to compare. Continue with the on_duplicate that it was made "
            "with, or start over with an empty state folder and a new checkpoint"
        )
    raise StateMismatch(
        f"the state in {root} was made with {_listing(bound)}, and the query runs with {_listing(own)}: put that back, or "
        "start over with an empty state folder and a new checkpoint"
    )


def _listing(meaning: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in sorted(meaning.items())) or "nothing said"
