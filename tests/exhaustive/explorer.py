"""Small worlds, exhausted: every state that a real machine can reach, and every command in each of them.

A *world* is a machine of the core with small limits (few keys, few messages, few options) and a set of commands. ``explore``
starts with the machine as it is made, applies every command to a copy of every state that it finds, and goes on until no new
state appears. It goes breadth first, so the script that leads to a violation is as short as any.

Rules
-----
1. A world is a subclass of ``World``. It says which commands there are in a state, how to copy a state, how to apply a command,
   and what must hold (``check`` for each new state, and whatever ``apply`` asserts for each transition).
2. ``apply`` changes the state that it is given, and returns False when the machine refuses the command. A refused command must
   change nothing; the explorer sees to that.
3. ``fingerprint`` is what makes two states the same: nested tuples of strings, numbers, booleans and None. It must contain
   whatever may influence what happens later, and nothing else, or the world is infinite: times relative to now; tokens, offsets
   and the like by rank; messages that are gone not at all.
4. Commands must be meaningful in every state with the same fingerprint: name a lease by its rank, not by its token. They are
   hashable and their ``str`` is what a person reads.

Theory of operation
-------------------
Of each state only a digest of its fingerprint is kept (128 bits: among a hundred million states two collide with a
probability of about 10⁻²³), with the state and the command that first led to it. States that are still to be expanded are kept
whole, packed with pickle. A fingerprint that leaves something out would hide states; ``check_merges`` therefore tries every
command on two different states that share a fingerprint, once for each fingerprint, and demands the same outcome.

To add a machine, write a module with its worlds and a ``Scope``, and name the scope in ``scopes.py``. ``make exhaustive``
explores the large worlds of every scope; tests explore the small ones.
"""

from __future__ import annotations

import pickle
import time
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from marshal import dumps
from traceback import extract_tb
from typing import Any, Generic, TypeVar

from seriatim.core.transition_table import TransitionTable

S = TypeVar("S")
C = TypeVar("C", bound=Hashable)
Row = tuple[str, str, str]

PROGRESS_EVERY = 5_000


class World(ABC, Generic[S, C]):
    """A machine in small scope. ``rows`` collects the transitions of its table that were seen: state, event, state."""

    name: str
    rows: set[Row]

    @abstractmethod
    def start(self) -> S:
        """The machine as it is made."""

    @abstractmethod
    def commands(self, state: S) -> Iterable[C]:
        """Every command that may be given in this state, whether it will be refused or not."""

    @abstractmethod
    def apply(self, state: S, command: C) -> bool:
        """Give the command, and check what comes of it. False when it was refused."""

    @abstractmethod
    def fingerprint(self, state: S) -> object:
        """What makes this state differ from others, as nested tuples of plain values."""

    def check(self, state: S) -> None:
        """Assert what must hold in every state."""

    def copy(self, state: S) -> S:
        return self.unpack(self.pack(state))

    def pack(self, state: S) -> bytes:
        return pickle.dumps(state, pickle.HIGHEST_PROTOCOL)

    def unpack(self, packed: bytes) -> S:
        unpacked: S = pickle.loads(packed)
        return unpacked


class Violation(AssertionError):
    """Something that must hold does not. ``script`` is a shortest list of commands that shows it."""

    def __init__(self, world: str, script: Sequence[Any], cause: str) -> None:
        steps = "".join(f"\n  {number}. {command}" for number, command in enumerate(script, 1))
        super().__init__(f"{world}: {cause}\nafter {len(script)} commands:{steps}")
        self.script = list(script)
        self.cause = cause


class NotExhausted(Exception):
    """A world has more states than it may have."""


@dataclass
class Exploration:
    """What was seen of a world."""

    name: str
    states: int = 0
    transitions: int = 0
    refused: int = 0
    merges_checked: int = 0
    depth: int = 0
    seconds: float = 0
    rows: set[Row] = field(default_factory=set)

    def __str__(self) -> str:
        rate = round((self.transitions + self.refused) / max(self.seconds, 0.001))
        return (
            f"{self.name}: {self.states:,} states, {self.transitions:,} transitions, {self.refused:,} commands refused, "
            f"depth {self.depth}, {self.seconds:.1f} s ({rate:,} commands/s)"
        )


@dataclass(frozen=True)
class Scope:
    """A machine with its worlds: small ones for every run of the tests, large ones for ``make exhaustive``.

    ``out_of_scope`` names the rows of the machine's table that no large world reaches, each with the reason.
    """

    machine: str
    table: TransitionTable[Any, Any] | None
    small: Sequence[World[Any, Any]]
    large: Sequence[World[Any, Any]]
    out_of_scope: Mapping[Row, str] = field(default_factory=dict)


def explore(
    world: World[S, C],
    *,
    most_states: int = 50_000_000,
    check_merges: bool = False,
    progress: Callable[[Exploration], None] | None = None,
) -> Exploration:
    """Visit every reachable state of a world; raise Violation when anything does not hold."""
    return _Explorer(world, most_states, check_merges, progress).run()


def replay(world: World[S, C], script: Iterable[C]) -> S:
    """The state that a script leads to. Raises what ``apply`` and ``check`` raise on the way."""
    state = world.start()
    world.check(state)
    for command in script:
        world.apply(state, command)
        world.check(state)
    return state


class _Explorer(Generic[S, C]):
    def __init__(
        self,
        world: World[S, C],
        most_states: int,
        check_merges: bool,
        progress: Callable[[Exploration], None] | None,
    ) -> None:
        self.world = world
        self.most_states = most_states
        self.progress = progress
        self.found = Exploration(world.name, rows=world.rows)
        self.began = time.monotonic()
        self.indexes: dict[bytes, int] = {}
        self.parents = array("q")
        self.led_by: list[C | None] = []
        self.next_layer: list[tuple[int, bytes]] = []
        # The first state of each fingerprint, until another state is compared with it.
        self.unmerged: dict[int, bytes] | None = {} if check_merges else None

    def run(self) -> Exploration:
        state = self.world.start()
        try:
            self.world.check(state)
        except AssertionError as error:
            raise Violation(self.world.name, [], str(error)) from error
        self._add(state, _digest(self.world.fingerprint(state)), -1, None)
        while self.next_layer:
            layer, self.next_layer = self.next_layer, []
            for index, packed in layer:
                self._expand(index, self.world.unpack(packed))
            self.found.depth += bool(self.next_layer)
        self._tell_progress()
        return self.found

    def _expand(self, index: int, state: S) -> None:
        world, before = self.world, _digest(self.world.fingerprint(state))
        successor: S | None = None
        for command in world.commands(state):
            if successor is None:
                successor = world.copy(state)
            try:
                accepted = world.apply(successor, command)
                after = _digest(world.fingerprint(successor))
                if not accepted:
                    assert after == before, "a command that was refused has changed something"
                    self.found.refused += 1
                    continue
                self.found.transitions += 1
                self._reach(successor, after, index, command)
            except Exception as error:
                raise self._violation(index, command, error) from error
            successor = None

    def _reach(self, state: S, digest: bytes, parent: int, command: C) -> None:
        known = self.indexes.get(digest)
        if known is None:
            self.world.check(state)
            self._add(state, digest, parent, command)
        elif self.unmerged is not None and known in self.unmerged:
            self._check_merge(known, state)

    def _add(self, state: S, digest: bytes, parent: int, command: C | None) -> None:
        index = len(self.led_by)
        if index >= self.most_states:
            raise NotExhausted(f"{self.world.name} has more than {self.most_states:,} states")
        packed = self.world.pack(state)
        self.indexes[digest] = index
        self.parents.append(parent)
        self.led_by.append(command)
        self.next_layer.append((index, packed))
        if self.unmerged is not None:
            self.unmerged[index] = packed
        self.found.states += 1
        if self.found.states % PROGRESS_EVERY == 0:
            self._tell_progress()

    def _check_merge(self, known: int, state: S) -> None:
        """Two states that have the same fingerprint answer every command alike."""
        assert self.unmerged is not None
        packed = self.unmerged[known]
        if packed == self.world.pack(state):
            return
        del self.unmerged[known]
        self.found.merges_checked += 1
        twin = self.world.unpack(packed)
        commands = list(self.world.commands(twin))
        assert set(commands) == set(self.world.commands(state)), "the fingerprint hides which commands there are"
        for command in commands:
            outcomes = [self._outcome(each, command) for each in (twin, state)]
            assert outcomes[0] == outcomes[1], (
                f"the fingerprint leaves something out: {command} has another outcome after {self._script(known)}"
            )

    def _outcome(self, state: S, command: C) -> tuple[bool, object]:
        successor = self.world.copy(state)
        return self.world.apply(successor, command), self.world.fingerprint(successor)

    def _script(self, index: int) -> list[C]:
        script: list[C] = []
        while (command := self.led_by[index]) is not None:
            script.append(command)
            index = self.parents[index]
        return script[::-1]

    def _violation(self, index: int, command: C, error: Exception) -> Exception:
        if isinstance(error, NotExhausted):
            return error
        what = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
        if not what:
            what = extract_tb(error.__traceback__)[-1].line or "an assertion failed"
        return Violation(self.world.name, [*self._script(index), command], what)

    def _tell_progress(self) -> None:
        self.found.seconds = time.monotonic() - self.began
        if self.progress is not None:
            self.progress(self.found)


def _digest(fingerprint: object) -> bytes:
    # Version 2 of marshal knows no references, so equal values are written equally.
    return blake2b(dumps(fingerprint, 2), digest_size=16).digest()  # type: ignore[arg-type]


def assert_table_is_exact(
    table: TransitionTable[Any, Any], seen: Iterable[Row], out_of_scope: Mapping[Row, str] | None = None
) -> None:
    """Every transition that was seen is in the table, and every one in the table was seen, except those named with a reason."""
    legal, seen, excused = {_row(each) for each in table}, set(seen), dict(out_of_scope or {})
    assert not seen - legal, f"not in the table: {sorted(seen - legal)}"
    assert not excused.keys() & seen, f"said to be out of scope, but seen: {sorted(excused.keys() & seen)}"
    missing = legal - seen - excused.keys()
    assert not missing, f"in the table, but never seen: {sorted(missing)}"


def _row(transition: tuple[Any, Any, Any]) -> Row:
    before, event, after = transition
    return str(before), str(event), str(after)
