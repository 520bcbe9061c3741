"""Every error that Seriatim raises, in one tree.

The type says whose fault it is, ``code`` is the gRPC status that the error maps to, and the message says what to do next.

::

    SeriatimError                 2  unknown
    ├── InvalidArgument           3  the caller passed a value that can never work
    │   └── InvalidSequence       3  a sequence number outside its space
    ├── QueueEmpty                4  a queue had nothing to give within the timeout
    ├── NotFound                  5  the named thing does not exist
    ├── AlreadyExists             6  the named thing exists already
    ├── PermissionDenied          7  the caller is known, and may not do this
    ├── Unauthenticated          16  the caller did not say who it is
    ├── ResourceExhausted         8  a limit is reached: slow down, or raise the limit
    │   ├── CapacityExceeded      8  too many messages are held
    │   └── FlowControlTimeout    8  no room to publish within the timeout
    ├── NotSupported             12  it could be asked of Google Pub/Sub, and can't be of Seriatim
    ├── StoreError                2  the store could not do what it was asked
    │   ├── StoreBusy            14  somebody else owns or locks the store: try again, or reach the owner
    │   │   └── StoreOwned       14  another process owns the store: reach it there
    │   ├── StoreFull             8  no room on the disk: make room and try again, nothing was changed
    │   ├── StoreFailed          13  the disk or the operating system failed, nothing was changed
    │   ├── OutcomeUnknown       10  a commit failed half-way: open the store again and load what is there
    │   ├── StoreLost             9  this handle may do nothing more: closed, forked, or another owner took over
    │   │   └── StoreBroken       9  this handle failed, and the store is still ours: open it again
    │   ├── NewerSchema           9  the store was written by a newer Seriatim
    │   ├── NotAStore             9  the file is something else, or lies where a store is not safe
    │   └── DamagedStore         15  what is stored is not what was written: restore a backup
    └── FailedPrecondition        9  right call, wrong moment: the state must change first
        ├── IllegalTransition     9  a state machine was sent an event that its state does not allow
        ├── LateMessage           9  a message arrived behind what was released (late policy ``raise``)
        ├── StaleLease            9  an ack, nack or extension of a lease that is no longer held
        ├── RedriveRefused        9  a dead letter cannot go back to its original place
        ├── PublishingPaused      9  a key is paused after a failed publish
        ├── GuaranteeNotMet       9  a chain of stages promises more than it can keep
        ├── StateMismatch         9  the state of a stream is missing, or is another query's, batch's or partition count's
        └── MissingExtra          9  an optional part of Seriatim is not installed
"""

from __future__ import annotations

from enum import IntEnum


class Status(IntEnum):
    """The gRPC status codes that errors map to."""

    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class SeriatimError(Exception):
    """The root of the tree: ``except SeriatimError`` catches whatever Seriatim raises on purpose."""

    code: Status = Status.UNKNOWN

    @property
    def message(self) -> str:
        return str(self)


class InvalidArgument(SeriatimError):
    """The caller passed a value that can never work."""

    code = Status.INVALID_ARGUMENT


class InvalidSequence(InvalidArgument):
    """A sequence number is not a number of its sequence space."""


class QueueEmpty(SeriatimError):
    """A queue had nothing to give within the timeout."""

    code = Status.DEADLINE_EXCEEDED


class NotFound(SeriatimError):
    """The named thing does not exist."""

    code = Status.NOT_FOUND


class AlreadyExists(SeriatimError):
    """The named thing exists already."""

    code = Status.ALREADY_EXISTS


class PermissionDenied(SeriatimError):
    """The caller is known, and may not do this."""

    code = Status.PERMISSION_DENIED


class Unauthenticated(SeriatimError):
    """The caller did not say who it is, or not truly."""

    code = Status.UNAUTHENTICATED


class ResourceExhausted(SeriatimError):
    """A limit is reached: slow down, or raise the limit."""

    code = Status.RESOURCE_EXHAUSTED


class CapacityExceeded(ResourceExhausted):
    """Too many messages are held behind gaps (overflow policy ``raise``)."""


class FlowControlTimeout(ResourceExhausted):
    """There was no room to publish within the flow control timeout."""


class NotSupported(SeriatimError):
    """It could be asked of Google Pub/Sub, and can't be of Seriatim."""

    code = Status.UNIMPLEMENTED


class StoreError(SeriatimError):
    """The store could not do what it was asked."""


class StoreBusy(StoreError):
    """Somebody else owns or locks the store; nothing was changed."""

    code = Status.UNAVAILABLE


class StoreOwned(StoreBusy):
    """Another process owns the store, and will until it ends."""


class StoreFull(StoreError):
    """There is no room on the disk; nothing was changed."""

    code = Status.RESOURCE_EXHAUSTED


class StoreFailed(StoreError):
    """The disk or the operating system failed; nothing was changed."""

    code = Status.INTERNAL


class OutcomeUnknown(StoreError):
    """A commit failed in a way that leaves open whether it took place: open the store again and load what is there."""

    code = Status.ABORTED


class StoreLost(StoreError):
    """This handle may do nothing more: it was closed or forked, a commit failed, or another owner took over."""

    code = Status.FAILED_PRECONDITION


class StoreBroken(StoreLost):
    """An earlier failure made this handle useless. Nothing says that somebody else owns the store: open it again."""


class NewerSchema(StoreError):
    """The store was written by a newer Seriatim than this one."""

    code = Status.FAILED_PRECONDITION


class NotAStore(StoreError):
    """The file is something else, or it lies where a store is not safe."""

    code = Status.FAILED_PRECONDITION


class DamagedStore(StoreError):
    """What is stored is not what was written."""

    code = Status.DATA_LOSS


class FailedPrecondition(SeriatimError):
    """Right call, wrong moment: the state must change first."""

    code = Status.FAILED_PRECONDITION


class IllegalTransition(FailedPrecondition):
    """A state machine was sent an event that its state does not allow; nothing was changed."""


class LateMessage(FailedPrecondition):
    """A message arrived behind what was already released (late policy ``raise``)."""


class StaleLease(FailedPrecondition):
    """An ack, nack or extension of a lease that is no longer held; nothing was changed."""


class RedriveRefused(FailedPrecondition):
    """A dead letter cannot go back to its original place."""


class PublishingPaused(FailedPrecondition):
    """A key is paused after a failed publish, so that later messages can't overtake the failed one."""


class GuaranteeNotMet(FailedPrecondition):
    """A chain of stages promises more than it can keep."""


class StateMismatch(FailedPrecondition):
    """The state of a stream is missing, or belongs to another query, batch, partition or partition count."""


class MissingExtra(FailedPrecondition):
    """An optional part of Seriatim is not installed."""
