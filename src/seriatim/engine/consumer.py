"""A consumer of a subscription, and its limits."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from typing import NamedTuple, Self, TypeVar

from seriatim.core.lanes.types import Lease
from seriatim.core.validation import is_number, require_whole, shown
from seriatim.engine.options import require_ack_deadline
from seriatim.errors import InvalidArgument
from seriatim.log import logger
from seriatim.store.base import Record as Record  # noqa: PLC0414 - fronts take it from here

T = TypeVar("T")

TURN = 64
"""How many messages a consumer gets in one turn."""


class Delivered(NamedTuple):
    """A message delivered under a lease."""

    lease: Lease
    record: Record

    @property
    def id(self) -> str:
        """The id of the message: text that only the broker can read."""
        return str(self.record.offset)

    @classmethod
    def of(cls, lease: Lease, data: bytes, attributes: Mapping[str, str] | None, published: float) -> Self:
        """A message whose record does not come from a store."""
        return cls(lease, Record(lease.offset, lease.key, data, attributes, published))


def whole_leases(delivered: Iterable[Delivered]) -> list[Lease]:
    """The leases of delivered messages, each once: the lease of a batch covers all its messages."""
    found: dict[int, list[Lease]] = {}
    for lease, _ in delivered:
        found.setdefault(lease.token, []).append(lease)
    return [
        leases[0]._replace(behind=tuple(lease.offset for lease in leases[1:])) if len(leases) > 1 else leases[0]
        for leases in found.values()
    ]


class Consumer:
    """A consumer: ``deliver`` is called with messages, ``fenced`` with lost leases, ``failed`` with errors of the store.

    Exceptions in these callbacks are only logged, because they must not affect other consumers.

    It has room while fewer than ``max_messages`` and less than ``max_bytes`` are outstanding. Its leases last for
    ``ack_deadline`` seconds, by default those of the subscription. With a ``batch`` above 1, a lease may cover that many
    messages of a key (rule 9 of the lanes); they are delivered together, with the same token.
    """

    def __init__(
        self,
        deliver: Callable[[Sequence[Delivered]], None],
        fenced: Callable[[Lease], None] = lambda _: None,
        max_messages: int = 1000,
        max_bytes: float = inf,
        failed: Callable[[BaseException], None] = lambda _: None,
        ack_deadline: float | None = None,
        batch: int = 1,
    ) -> None:
        require_whole("max_messages", max_messages, 0)
        require_whole("batch", batch, 1)
        if not is_number(max_bytes) or not max_bytes > 0:
            raise InvalidArgument(f"max_bytes must be a number above 0, not {shown(max_bytes)}")
        if ack_deadline is not None:
            require_ack_deadline(ack_deadline)
        self.deliver = _contained(deliver)
        self.fenced = _contained(fenced)
        self.failed = _contained(failed)
        # to be called when it has room for another reason than what it said
        self.wake: Callable[[], None] = lambda: None
        # to be called with leases of messages that it did not try: they are given out again, and don't count as attempts
        self.give_back: Callable[[Iterable[Lease]], None] = lambda _: None
        # to be called with leases of messages that are done; there while it is attached to an engine
        self.ack_all: Callable[[Iterable[Lease]], object]
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.ack_deadline = ack_deadline
        self.batch = batch
        # one of its leases that is out, by its token
        self.lease: Callable[[int], Lease | None] = lambda _: None
        self.outstanding = 0  # how many messages it has
        self._covered: dict[int, int] = {}  # how many of them are under the lease of a batch, by token
        self.batches: deque[list[Lease]] = deque()  # what waits for a read
        self._sizes: dict[int, int] = {}  # of outstanding messages, by token, while its bytes are limited
        self._bytes = 0
        self._largest = 0  # of the messages that it got

    def stop(self) -> None:
        """Accept nothing more; outstanding messages are not affected."""
        self.max_messages = 0

    def lend(self, leases: list[Lease]) -> list[Lease]:
        """Receive leases. Returns them message by message."""
        if self.batch > 1:
            self._covered.update((lease.token, len(lease.offsets)) for lease in leases if lease.behind)
            leases = [one for lease in leases for one in lease.each()]
        self.outstanding += len(leases)
        return leases

    def room(self) -> int:
        """How many messages it accepts now."""
        if self._bytes >= self.max_bytes:
            return 0
        return min(self.max_messages - self.outstanding, TURN if self.max_bytes == inf else self._guess())

    def _guess(self) -> int:
        """How many more fit, if they are no larger than the earlier ones. The size of a message is known only once it is
        read."""
        return 1 if not self._largest else max(1, min(TURN, int((self.max_bytes - self._bytes) // self._largest)))

    def weigh(self, delivered: Sequence[Delivered]) -> int:
        """Count the bytes of messages, if they are limited. Returns how many it accepts: until the limit is reached there is
        room for one more message of any size. A batch counts as one."""
        if self.max_bytes == inf:
            return len(delivered)
        for number, (lease, record) in enumerate(delivered):
            if self._bytes >= self.max_bytes and lease.token not in self._sizes:
                return number
            size = len(record.data)
            self._sizes[lease.token] = self._sizes.get(lease.token, 0) + size
            self._bytes += size
            self._largest = max(self._largest, size)
        return len(delivered)

    def let_go(self, lease: Lease, left: int = 0) -> int:
        """A lease has ended for any reason, or now covers only ``left`` messages. Returns how many messages it lost."""
        gone = self._covered.pop(lease.token, 1) - left if self._covered else 1
        self.outstanding -= gone
        if left:
            self._covered[lease.token] = left
        elif self._sizes:
            self._bytes -= self._sizes.pop(lease.token, 0)
        return gone


def _contained(callback: Callable[[T], None]) -> Callable[[T], None]:
    def call(argument: T) -> None:
        try:
            callback(argument)
        except BaseException as error:  # noqa: BLE001 - see Consumer
            logger.error("a consumer failed: %r", error, exc_info=error)

    return call
