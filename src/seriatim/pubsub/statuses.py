"""Errors as gRPC statuses."""

from __future__ import annotations

from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as StatusMessage

from seriatim.errors import FailedPrecondition, SeriatimError, Status, StoreLost

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"


class AcksFailed(FailedPrecondition):
    """Some acks, or changes of deadlines, came to nothing on a subscription with exactly-once delivery."""

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__("some acknowledgement ids in the request were invalid: their messages are delivered again")
        self.failures = failures


def code_of(error: SeriatimError) -> grpc.StatusCode:
    """The status of an error. To a client, a server that lost its store is one that goes away: it may try another time."""
    return _CODES[Status.UNAVAILABLE if isinstance(error, StoreLost) else int(error.code)]


def details_of(error: SeriatimError) -> tuple[tuple[str, bytes], ...]:
    """What a status says to programs: which ack ids failed, and why."""
    if not isinstance(error, AcksFailed):
        return ()
    info = AnyMessage()
    info.Pack(ErrorInfo(reason="ACKS_FAILED", domain="pubsub.googleapis.com", metadata=error.failures))
    status = StatusMessage(code=int(error.code), message=error.message, details=[info])
    return ((_DETAILS, status.SerializeToString()),)


async def abort(context: Any, error: SeriatimError) -> None:
    """End a call with the status of an error."""
    await context.abort(code_of(error), error.message, details_of(error))
