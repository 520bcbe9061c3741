"""What must be true of dead letters: why they died, after how many attempts, and what their copies say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from seriatim.engine.broker import DeadLetter
from seriatim.engine.dead_letters import ATTEMPTS, ERROR, OFFSET, SOURCE
from tests.simulation.program import FREE, LIMITED, STRICT, SUBSCRIPTIONS
from tests.simulation.rules import failures_known, is_steady, policy_of
from tests.simulation.truth import Given
from tests.simulation.world import World

COMPARED = 100
"""So many characters of an error are compared: long ones are cut somewhere."""

LONGEST_ATTRIBUTE = 1024

INTERRUPTED = "the process ended during delivery"


def judge_letters(world: World, sub: str, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """Everything that is wrong with the dead letters of a subscription, as they are listed at the end."""
    for letter in letters:
        yield from _judge_origin(world, sub, letter)
        yield from _judge_copy(world, sub, letter)
        if is_steady(world, sub) and world.plan.options[sub].get("window", 1) == 1:
            yield from _judge_death(world, sub, letter)


def judge_redrives(world: World, letters: Sequence[DeadLetter]) -> Iterator[str]:
    """What was appended is in the log under its new id, and no dead letter any more."""
    listed = {letter.id for letter in letters}
    for operation in world.operations.of(FREE, "redrive"):
        if not operation.value or operation.result is None:
            continue
        before, after = operation.result
        old, new = (world.disk.log.get((SUBSCRIPTIONS[FREE], int(id_))) for id_ in (before, after))
        if old is None or new is None or (old.key, old.data) != (new.key, new.data):
            yield f"wrong redrive: {old} became {new}"
        if before in listed and not world.operations.of(FREE, "seek"):
            yield f"wrong redrive: {old} is still a dead letter"


def judge_copies(world: World) -> Iterator[str]:
    """Dead letters of a key are copied in its order, where the order of a key is promised."""
    originals: dict[tuple[str, str], list[int]] = {}
    for _, copy in sorted(world.copies.items()):
        if copy.ordering_key is not None:
            name = copy.attributes[SOURCE], copy.ordering_key
            originals.setdefault(name, []).append(int(copy.attributes[OFFSET]))
    for (sub, key), offsets in sorted(originals.items()):
        if sub in (STRICT, LIMITED) and offsets != sorted(offsets):
            yield f"copies out of order: {sub} {key}: {offsets}"


def _judge_origin(world: World, sub: str, letter: DeadLetter) -> Iterator[str]:
    record = world.disk.log.get((SUBSCRIPTIONS[sub], int(letter.id)))
    if record is None or record.key != letter.ordering_key:
        yield f"wrong dead letter: {sub} {letter} was {record}"


def _judge_copy(world: World, sub: str, letter: DeadLetter) -> Iterator[str]:
    """A copy is the message with what is known about its death."""
    if letter.copy_id is None or letter.copy_topic is None:
        return
    copy = world.copies.get(int(letter.copy_id))
    original = world.disk.log.get((SUBSCRIPTIONS[sub], int(letter.id)))
    if copy is None or original is None:
        yield f"wrong copy: {sub} {letter} has no copy that was delivered"
        return
    expected = {
        **(original.attributes or {}),
        SOURCE: sub,
        OFFSET: letter.id,
        ATTEMPTS: str(letter.attempts),
        ERROR: (letter.error or "").encode()[:LONGEST_ATTRIBUTE].decode(errors="ignore"),
    }
    seen = {name: copy.attributes.get(name) for name in expected}
    if (copy.ordering_key, copy.data, seen) != (original.key, original.data, expected):
        yield f"wrong copy: {sub} {letter} is {copy.ordering_key!r}, {copy.data!r}, {seen}"


def _was_opened_again(world: World, lease: Given, letter: DeadLetter) -> bool:
    """Whether the store was opened between the last delivery of a message and its death: what was not written is forgotten."""
    died_at = letter.time.timestamp() - world.wall
    return any(epoch > lease.epoch and opened <= died_at for epoch, opened in world.disk.opened.items())


def _judge_death(world: World, sub: str, letter: DeadLetter) -> Iterator[str]:
    """It died of its attempts, was given up by its handler or with a message before it, or died by an operator's hand."""
    leases = sorted(
        (lease for (name, _, _), lease in world.leases.given.items() if name == sub and lease.offset == int(letter.id)),
        key=lambda lease: lease.token,
    )
    operators = [one for one in world.operations.of(sub, "dead_letter") if letter.id in (one.result or ())]
    doubtful = [one for one in world.operations.of(sub, "dead_letter") if one.result is None]
    known = failures_known(world, sub, leases, leases[-1].epoch) if leases else {0}
    if leases and leases[-1].ended_by == "taken back":
        known.add(leases[-1].attempt)  # an operator took it away from its handler
    if leases and (leases[-1].ended_by in ("", "acked") or _was_opened_again(world, leases[-1], letter)):
        known |= failures_known(world, sub, leases, -1)
    if letter.attempts not in known:
        yield f"wrong attempts of a dead letter: {sub} {letter}, and {sorted(known)} failures are known of {leases}"
    most = policy_of(world, sub).max_attempts
    if operators:
        reasons = [one.value for one in operators if one.value is not None]
        if reasons and not any(_is_said(letter.error, reason) for reason in reasons):
            yield f"wrong error of a dead letter: {sub} {letter} instead of {reasons}"
    elif not doubtful and not (letter.error or "").startswith("behind message"):
        is_given_up = bool(leases) and leases[-1].ended_by == "given up"
        if not is_given_up and (most is None or letter.attempts < most):
            yield f"dead without reason: {sub} {letter} after {leases}"
        elif not _is_reason(world, letter, leases):
            yield f"wrong error of a dead letter: {sub} {letter} after {leases}"


def _is_reason(world: World, letter: DeadLetter, leases: Sequence[Given]) -> bool:
    """Whether a dead letter has the error of its last delivery. What was not written before a crash is not known."""
    last = leases[-1] if leases else None
    if last is None:
        return False
    if letter.error == INTERRUPTED and last.ended_stamp >= world.disk.synced.get(last.epoch, -1):
        return True
    if last.ended_by == "expired":
        return letter.error == "lease expired"
    if last.ended_by in ("nacked", "given up") and last.said is not None:
        return _is_said(letter.error, last.said.error)
    return letter.error == INTERRUPTED


def _is_said(error: str | None, said: object) -> bool:
    """Whether an error is what somebody said, as text that can be stored."""
    if isinstance(said, BaseException):
        try:
            said = f"{type(said).__name__}: {said}"
        except RuntimeError:
            return error is not None and error.startswith(type(said).__name__)
    if not isinstance(said, str) or error is None:
        return error == said
    expected = said.replace("\0", "\\x00").encode(errors="backslashreplace").decode()
    return error[:COMPARED] == expected[:COMPARED]
