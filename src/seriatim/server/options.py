"""The options of a server."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim.core.validation import require_duration, require_whole

MAX_ACK_DEADLINE_S = 600

_COUNTS = (
    *("window", "max_outstanding_messages", "max_outstanding_bytes", "max_request_bytes", "max_publishing_bytes"),
    *("max_calls", "max_calls_per_client", "max_streams_per_client"),
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """``project``: the project whose resources have short names in the store. ``min_ack_deadline``: seconds; Google's is 10.
    ``window``: how many messages of a key may be in flight, unless the subscription's label sets it. ``max_outstanding_*``:
    per stream, unless its client sets less. ``max_publishing_bytes``: requests that are being written, of all clients
    together. A client is a token, or an address where there are no tokens. ``request_timeout``: seconds that a request may
    take to arrive; ``first_request_timeout``: the same for the first request of a stream. ``keepalive``: seconds of silence
    after which a client is pinged."""

    project: str = "seriatim"
    min_ack_deadline: int = 10
    window: int = 1
    max_outstanding_messages: int = 10_000
    max_outstanding_bytes: int = 100 * 1024 * 1024
    max_request_bytes: int = 20 * 1024 * 1024
    max_publishing_bytes: int = 256 * 1024 * 1024
    max_calls: int = 10_000
    max_calls_per_client: int = 4000
    max_streams_per_client: int = 1000
    request_timeout: float = 60.0
    first_request_timeout: float = 10.0
    keepalive: float = 10.0

    def __post_init__(self) -> None:
        for name in ("min_ack_deadline", "request_timeout", "first_request_timeout", "keepalive"):
            require_duration(name, getattr(self, name))
        for name in _COUNTS:
            require_whole(name, getattr(self, name), 1)
