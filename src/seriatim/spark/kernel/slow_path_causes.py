"""Why keys can't take the fast path: the causes, and those that can be detected beforehand."""

from __future__ import annotations

from enum import IntEnum
from math import inf
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seriatim.core.resequencing.options import ResequenceOptions, StartRule
from seriatim.spark.kernel.batch import Batch

MAX_SPAN = 2**40
"""A key whose numbers span more than this is left to the slow path, so that a million keys fit on the line."""


class Cause(IntEnum):
    """Why a key is left to the slow path."""

    NONE = 0
    GATHERING = 1  # the start is not known yet
    EPOCH = 2  # a session ends, or a row belongs to one that has ended
    GRID = 3  # a row is not a multiple of the increment
    JUMP = 4  # the numbers span more than fits on the line
    DUE = 5  # a gap is due, and is not to be skipped
    LATE = 6  # a row is late, and that must raise
    ROOM = 7  # more was held than the capacity allows
    CIRCLE = 8  # a row came from the other half of the circle
    SYNC = 9  # sync was lost
    MEMORY = 10  # the memory of numbers given up moved past a row that is behind


Causes: TypeAlias = npt.NDArray[np.int8]


def begin_sessions(batch: Batch, options: ResequenceOptions) -> Batch:
    """The batch, with new keys at their start, which a literal start or the first row determines."""
    new = np.flatnonzero(~batch.known)
    if not new.size:
        return batch
    facts = batch.facts
    first = batch.starts[new]
    facts.epoch[new] = batch.rows.epoch[first]
    literal = options.start.rule is StartRule.LITERAL
    facts.expected[new] = int(options.start.value) if literal else batch.rows.sequence[first]
    facts.horizon[new] = facts.expected[new]
    if options.start.rule is StartRule.LOWEST_WITHIN:
        facts.start_deadline[new] = inf
    return batch


def slow_path_causes(batch: Batch, options: ResequenceOptions) -> Causes:
    """Why keys can't take the fast path, judging by their rows and their state."""
    causes = np.zeros(len(batch), np.int8)
    owner, rows, facts = batch.owner_of_rows(), batch.rows, batch.facts
    distance = rows.sequence - facts.expected[owner]
    if options.space.modulus is None:
        causes[owner[np.abs(distance) > MAX_SPAN]] = Cause.JUMP
    elif options.space.modulus > MAX_SPAN:
        causes[:] = Cause.JUMP
    held = batch.held
    causes[held.owner[held.number - facts.expected[held.owner] > MAX_SPAN]] = Cause.JUMP
    if options.space.increment > 1:
        causes[owner[distance % options.space.increment != 0]] = Cause.GRID
    causes[owner[rows.epoch != facts.epoch[owner]]] = Cause.EPOCH
    causes[~np.isnan(facts.start_deadline)] = Cause.GATHERING
    return causes
