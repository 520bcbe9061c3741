"""A database change stream: a copy of a table is kept up to date from its changes.

The key is the row, so changes of one row are applied in order and different rows at once. The copy is locked for a moment when
users:123 is first inserted: that change is retried, later changes of its row wait for it, and other rows go on.

Prints:

    users:123 failed once: copy is locked
    users:456 was applied before users:123
    the copy: {'orders:789': {'total': 12}, 'users:456': {'name': 'Grace'}}
"""

import asyncio
from typing import Any

from seriatim import Message, PubSub, RetryPolicy

CHANGES: list[tuple[str, str, dict[str, Any]]] = [
    ("users", "123", {"action": "INSERT", "data": {"name": "Ada"}}),
    ("users", "123", {"action": "UPDATE", "data": {"name": "Ada L."}}),
    ("users", "123", {"action": "DELETE"}),
    ("users", "456", {"action": "INSERT", "data": {"name": "Grace"}}),
    ("orders", "789", {"action": "INSERT", "data": {"total": 12}}),
]


class Copy:
    """The table on the other side."""

    def __init__(self) -> None:
        self.rows: dict[str, Any] = {}
        self.applied: list[str] = []
        self.complete = asyncio.Event()

    def apply(self, message: Message) -> None:
        row, change = str(message.ordering_key), message.json()
        if row == "users:123" and message.delivery_attempt == 1 and change["action"] == "INSERT":
            raise RuntimeError("copy is locked")
        match change["action"]:
            case "INSERT":
                assert row not in self.rows
                self.rows[row] = change["data"]
            case "UPDATE":
                self.rows[row].update(change["data"])
            case "DELETE":
                del self.rows[row]
        self.applied.append(row)
        message.ack()
        if len(self.applied) == len(CHANGES):
            self.complete.set()


async def main() -> None:
    copy = Copy()
    async with PubSub("sqlite:///database-changes.db") as pubsub:
        topic = await pubsub.topic("database-changes").ensure()
        retry = RetryPolicy(min_backoff=0.05, max_backoff=1.0)
        subscription = await topic.subscription("copy").ensure(retry=retry)
        subscription.on("message", copy.apply)
        subscription.on("error", lambda error: print(f"users:123 failed once: {error}"))
        subscription.open()
        for table, row, change in CHANGES:
            topic.publish_json(change, ordering_key=f"{table}:{row}")
        await copy.complete.wait()
    if copy.applied.index("users:456") < copy.applied.index("users:123"):
        print("users:456 was applied before users:123")
    print(f"the copy: {dict(sorted(copy.rows.items()))}")


if __name__ == "__main__":
    asyncio.run(main())
