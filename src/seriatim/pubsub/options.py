"""What a server can be told."""

from __future__ import annotations

from dataclasses import dataclass

from seriatim.core.options import require_duration, require_whole

LONGEST_ACK_DEADLINE = 600

_COUNTS = (
    *("window", "max_outstanding_messages", "max_outstanding_bytes", "max_request_bytes", "max_publishing_bytes"),
    *("max_calls", "max_streams_per_client"),
)


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """``project``: whose resources have short names in the store. ``min_ack_deadline``: seconds; Google's is 10.
    ``window``: how many messages of a key may be in flight, where a subscription's label does not say.
    ``max_outstanding_*``: for each stream, if its client does not set less. ``max_publishing_bytes``: requests that are being
    written, of all clients together. A client is a token, or an address where there are no tokens."""

    project: str = "seriatim"
    min_ack_deadline: int = 10
    window: int = 1
    max_outstanding_messages: int = 10_000
    max_outstanding_bytes: int = 100 * 1024 * 1024
    max_request_bytes: int = 20 * 1024 * 1024
    max_publishing_bytes: int = 256 * 1024 * 1024
    max_calls: int = 10_000
    max_streams_per_client: int = 1000

    def __post_init__(self) -> None:
        require_duration("min_ack_deadline", self.min_ack_deadline)
        for name in _COUNTS:
            require_whole(name, getattr(self, name), 1)
