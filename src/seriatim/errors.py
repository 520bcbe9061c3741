"""Every error that Seriatim raises, in one tree.

The type says whose fault it is, ``code`` is the gRPC status that the error maps to, and the message says what to do next.

::

    SeriatimError                 2  unknown
    ├── InvalidArgument           3  the caller passed a value that can never work
    │   └── InvalidSequence       3  a sequence number outside its space
    ├── QueueEmpty                4  a queue stayed empty until the timeout
    ├── NotFound                  5  the named thing does not exist
    ├── AlreadyExists             6  the named thing already exists
    ├── PermissionDenied          7  the caller is not allowed to do this
    ├── Unauthenticated          16  missing or invalid credentials
    ├── ResourceExhausted         8  a limit is reached: slow down, or raise the limit
    │   ├── CapacityExceeded      8  too many messages are held
    │   └── FlowControlTimeout    8  no room to publish within the timeout
    ├── PublishFailed            10  some of many messages were not published: ``results`` says which
    ├── NotSupported             12  a feature of Google Pub/Sub that Seriatim does not have
    ├── StoreError                2  the store failed
    │   ├── StoreBusy            14  another process owns or locks the store: try again, or connect to the owner
    │   │   └── StoreOwned       14  another process owns the store: connect to it
    │   ├── StoreFull             8  the disk is full: free some space and try again, nothing was changed
    │   ├── StoreFailed          13  the disk or the operating system failed, nothing was changed
    │   ├── OutcomeUnknown       10  a commit may or may not have happened: reopen the store and look
    │   ├── StoreLost             9  this handle can't be used any more: closed, forked, or another owner took over
    │   │   └── StoreBroken       9  this handle failed, but the store is still ours: reopen it
    │   ├── NewerSchema           9  the store was written by a newer Seriatim
    │   ├── NotAStore             9  the file is not a store, or is on a disk where a store is not safe
    │   └── DamagedStore         15  what is stored is not what was written: restore a backup
    └── FailedPrecondition        9  not possible in the current state: change that first
        ├── IllegalTransition     9  a state machine was sent an event that its state does not allow
        ├── LateMessage           9  a message arrived behind what was released (late policy ``raise``)
        ├── StaleLease            9  an ack, nack or extension of a lease that is no longer held
        ├── RedriveRefused        9  a dead letter cannot go back to its original place
        ├── PublishingPaused      9  a key is paused after a failed publish
        ├── GuaranteeNotMet       9  a required guarantee does not hold
        ├── StateMismatch         9  the state of a stream is missing, or belongs to another query, batch or partition count
        └── MissingExtra          9  an extra of Seriatim is not installed
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

__all__ = [
    "AlreadyExists",
    "CapacityExceeded",
    "DamagedStore",
    "FailedPrecondition",
    "FlowControlTimeout",
    "GuaranteeNotMet",
    "IllegalTransition",
    "InvalidArgument",
    "InvalidSequence",
    "LateMessage",
    "MissingExtra",
    "NewerSchema",
    "NotAStore",
    "NotFound",
    "NotSupported",
    "OutcomeUnknown",
    "PermissionDenied",
    "PublishFailed",
    "PublishingPaused",
    "QueueEmpty",
    "RedriveRefused",
    "ResourceExhausted",
    "SeriatimError",
    "StaleLease",
    "StateMismatch",
    "Status",
    "StoreBroken",
    "StoreBusy",
    "StoreError",
    "StoreFailed",
    "StoreFull",
    "StoreLost",
    "StoreOwned",
    "Unauthenticated",
]


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
        """What went wrong, and what to do next."""
        return str(self)


class InvalidArgument(SeriatimError):
    """The caller passed a value that can never work."""

    code = Status.INVALID_ARGUMENT


class InvalidSequence(InvalidArgument):
    """A sequence number is not a number of its sequence space."""


class QueueEmpty(SeriatimError):
    """A queue stayed empty until the timeout."""

    code = Status.DEADLINE_EXCEEDED


class NotFound(SeriatimError):
    """The named thing does not exist."""

    code = Status.NOT_FOUND


class AlreadyExists(SeriatimError):
    """The named thing already exists."""

    code = Status.ALREADY_EXISTS


class PermissionDenied(SeriatimError):
    """The caller is authenticated, but not allowed to do this."""

    code = Status.PERMISSION_DENIED


class Unauthenticated(SeriatimError):
    """Credentials are missing or invalid."""

    code = Status.UNAUTHENTICATED


class ResourceExhausted(SeriatimError):
    """A limit is reached: slow down, or raise the limit."""

    code = Status.RESOURCE_EXHAUSTED


class CapacityExceeded(ResourceExhausted):
    """Too many messages are held behind gaps (overflow policy ``raise``)."""


class FlowControlTimeout(ResourceExhausted):
    """There was no room to publish within the flow control timeout."""


class NotSupported(SeriatimError):
    """A feature of Google Pub/Sub that Seriatim does not have."""

    code = Status.UNIMPLEMENTED


class PublishFailed(SeriatimError):
    """Some of many messages were not published. ``results`` has for each of them, in order, its id or its error."""

    code = Status.ABORTED

    def __init__(self, message: str, results: Sequence[str | BaseException] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


class StoreError(SeriatimError):
    """The root of the errors of stores."""


class StoreBusy(StoreError):
    """Another process owns or locks the store; nothing was changed."""

    code = Status.UNAVAILABLE


class StoreOwned(StoreBusy):
    """Another process owns the store until it ends."""


class StoreFull(StoreError):
    """The disk is full; nothing was changed."""

    code = Status.RESOURCE_EXHAUSTED


class StoreFailed(StoreError):
    """The disk or the operating system failed; nothing was changed."""

    code = Status.INTERNAL


class OutcomeUnknown(StoreError):
    """A commit failed in a way that leaves open whether it happened: reopen the store and look."""

    code = Status.ABORTED


class StoreLost(StoreError):
    """This handle can't be used any more: it was closed or forked, a commit failed, or another owner took over."""

    code = Status.FAILED_PRECONDITION


class StoreBroken(StoreLost):
    """An earlier failure broke this handle. Nothing indicates another owner: reopen the store."""


class NewerSchema(StoreError):
    """The store was written by a newer Seriatim than this one."""

    code = Status.FAILED_PRECONDITION


class NotAStore(StoreError):
    """The file is not a store, or is on a disk where a store is not safe."""

    code = Status.FAILED_PRECONDITION


class DamagedStore(StoreError):
    """What is stored is not what was written."""

    code = Status.DATA_LOSS


class FailedPrecondition(SeriatimError):
    """Not possible in the current state: change that first."""

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
    """A required guarantee does not hold: of a pipeline, or in an audit."""


class StateMismatch(FailedPrecondition):
    """The state of a stream is missing, or belongs to another query, batch, partition or partition count."""


class MissingExtra(FailedPrecondition):
    """An extra of Seriatim is not installed."""
