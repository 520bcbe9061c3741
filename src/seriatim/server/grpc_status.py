"""Errors as gRPC statuses."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status as StatusMessage

from seriatim.errors import FailedPrecondition, SeriatimError, Status, StoreLost
from seriatim.log import logger
from seriatim.server.admission import RequestTimeout

_CODES = {code.value[0]: code for code in grpc.StatusCode}
_DETAILS = "grpc-status-details-bin"

MAX_DETAILS_BYTES = 2048
"""Error messages are cut to this size: they may quote the request, and clients accept about 8 kB of headers."""


class AcksFailed(FailedPrecondition):
    """Some acks or deadline changes failed on a subscription with exactly-once delivery."""

    def __init__(self, failures: dict[str, str]) -> None:
        super().__init__("some acknowledgement ids in the request were invalid: their messages are delivered again")
        self.failures = failures


def code_of(error: SeriatimError) -> grpc.StatusCode:
    """The status of an error. A server that lost its store is UNAVAILABLE, so that clients retry."""
    return _CODES[Status.UNAVAILABLE if isinstance(error, StoreLost) else int(error.code)]


def details_of(error: SeriatimError) -> tuple[tuple[str, bytes], ...]:
    """Machine-readable details of a status: which ack ids failed, and why."""
    if not isinstance(error, AcksFailed):
        return ()
    info = AnyMessage()
    info.Pack(ErrorInfo(reason="ACKS_FAILED", domain="pubsub.googleapis.com", metadata=error.failures))
    status = StatusMessage(code=int(error.code), message=_shortened(error.message), details=[info])
    return ((_DETAILS, status.SerializeToString()),)


async def abort(context: Any, error: SeriatimError) -> None:
    """End a call with the status of an error."""
    await context.abort(code_of(error), _shortened(error.message), details_of(error))


def _shortened(text: str) -> str:
    encoded = text.encode(errors="backslashreplace")
    if len(encoded) <= MAX_DETAILS_BYTES:
        return encoded.decode()
    return encoded[:MAX_DETAILS_BYTES].decode(errors="ignore") + "…"


@asynccontextmanager
async def statuses(context: Any) -> AsyncIterator[None]:
    """Any error in the block ends the call with its status."""
    try:
        yield
    except SeriatimError as error:
        await abort(context, error)
    except RequestTimeout as error:
        await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, str(error))
    except grpc.aio.AbortError:  # it has its status already
        raise
    except grpc.aio.InternalError as error:  # the client is gone
        logger.debug("a client hung up: %s", error)
    except Exception:  # noqa: BLE001 - the client must hear of it, and the server go on
        logger.exception("a call failed")
        await context.abort(grpc.StatusCode.INTERNAL, "the server failed: see its log")
