"""What a correct edge node sends, in every order in which it may arrive within the timeout.

Each message arrives once. A birth arrives after everything of the session before, because what a session leaves behind its
end is late by the rules; what follows a birth may come before it. Then everything comes out, in the order in which it was sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from seriatim.core.sparkplug.edge_node import EdgeNode
from seriatim.core.sparkplug.messages import Kind, NodeOrdering, Ordered, StatusChanged
from tests.exhaustive.clones import clone
from tests.exhaustive.edge_world import Command, Message, of_the_node
from tests.exhaustive.explorer import Row, World


@dataclass(frozen=True)
class Sent:
    """What a node sent, session by session. ``wrong_at_birth``: its clock is set right after each birth, as the message after
    it tells; nothing of the next session comes before that message."""

    name: str
    options: NodeOrdering
    sessions: tuple[tuple[Message, ...], ...]
    wrong_at_birth: bool = False


class HonestState:
    __slots__ = ("arrived", "node", "released")

    def __init__(self, sent: Sent) -> None:
        self.node: EdgeNode[str] = EdgeNode(sent.options, "k")
        self.arrived: frozenset[tuple[int, int]] = frozenset()
        self.released = 0


class HonestWorld(World[HonestState, Command]):
    """A correct node, and a broker that keeps order within each topic only."""

    def __init__(self, sent: Sent) -> None:
        self.sent, self.name = sent, f"correct edge node, {sent.name}"
        self.rows: set[Row] = set()
        self._messages = [message for session in sent.sessions for message in session]

    def start(self) -> HonestState:
        return HonestState(self.sent)

    def commands(self, state: HonestState) -> Iterator[Command]:
        for number, session in enumerate(self.sent.sessions):
            for place, message in enumerate(session):
                if (number, place) not in state.arrived and self._may_arrive(state, number, place):
                    yield Command(["arrives:", message])

    def _may_arrive(self, state: HonestState, number: int, place: int) -> bool:
        if number == 0:
            return True
        before = {(number - 1, at) for at in range(len(self.sent.sessions[number - 1]))}
        if place == 0:
            return before <= state.arrived
        awaited = {(number - 1, 0), (number - 1, 1)} if self.sent.wrong_at_birth else {(number - 1, 0)}
        return awaited <= state.arrived

    def apply(self, state: HonestState, command: Command) -> bool:
        _, message = command
        place = next(
            (number, session.index(message)) for number, session in enumerate(self.sent.sessions) if message in session
        )
        state.arrived |= {place}
        for effect in state.node.receive(message, 0.0):
            if isinstance(effect, Ordered):
                awaited = self._messages[state.released]
                assert effect.message == awaited, f"{effect.message.body} came out before {awaited.body}"
                state.released += 1
            else:
                assert isinstance(effect, StatusChanged), f"nothing is wrong here, and the node says {effect}"
        return True

    def copy(self, state: HonestState) -> HonestState:
        return clone(state)

    def check(self, state: HonestState) -> None:
        if len(state.arrived) == len(self._messages):
            assert state.released == len(self._messages), "everything has arrived, and not everything came out"
            assert not state.node.held_count

    def fingerprint(self, state: HonestState) -> object:
        return tuple(sorted(state.arrived)), state.released, of_the_node(state.node, 0.0)


def session(start: int, bd_seq: int, born: int | None, *stamps: int | None) -> tuple[Message, ...]:
    """A birth, and data behind it with these stamps."""
    birth = Message(Kind.NBIRTH, f"birth {start}", start, born, None, bd_seq)
    numbers = ((start + distance) % 256 for distance in range(1, len(stamps) + 1))
    return birth, *(Message(Kind.NDATA, f"data {seq}", seq, at) for seq, at in zip(numbers, stamps, strict=True))
