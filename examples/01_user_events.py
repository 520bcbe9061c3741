"""User events: what a user did is processed in the order in which it was done; users do not wait for each other.

Prints:

    ada: login → page_view /home → logout
    bob: login → page_view /cart → page_view /pay → logout
    sessions that are still open: none
"""

import asyncio
from collections import defaultdict

from seriatim import Message, PubSub

EVENTS = [
    ("ada", {"type": "login"}),
    ("bob", {"type": "login"}),
    ("bob", {"type": "page_view", "page": "/cart"}),
    ("ada", {"type": "page_view", "page": "/home"}),
    ("bob", {"type": "page_view", "page": "/pay"}),
    ("ada", {"type": "logout"}),
    ("bob", {"type": "logout"}),
]


class Sessions:
    """A state machine per user. It would go wrong if events of a user came out of order, or twice at once."""

    def __init__(self) -> None:
        self.open: set[str] = set()
        self.history: dict[str, list[str]] = defaultdict(list)
        self.all_seen = asyncio.Event()

    async def handle(self, message: Message) -> None:
        user, event = message.ordering_key, message.json()
        assert user is not None
        assert (user in self.open) == (event["type"] != "login"), "out of order"
        await asyncio.sleep(0)  # a real handler would ask a database here; other users go on meanwhile
        if event["type"] == "login":
            self.open.add(user)
        elif event["type"] == "logout":
            self.open.remove(user)
        self.history[user].append(" ".join(event.values()))
        message.ack()
        if sum(map(len, self.history.values())) == len(EVENTS):
            self.all_seen.set()


async def main() -> None:
    sessions = Sessions()
    async with PubSub("sqlite:///user-events.db") as pubsub:
        topic = await pubsub.topic("user-events").ensure()
        subscription = await topic.subscription("event-processor").ensure()
        subscription.on("message", sessions.handle)
        subscription.open()
        for user, event in EVENTS:
            topic.publish_json(event, ordering_key=user)
        await sessions.all_seen.wait()
    for user, history in sorted(sessions.history.items()):
        print(f"{user}: {' → '.join(history)}")
    print(f"sessions that are still open: {', '.join(sessions.open) or 'none'}")


if __name__ == "__main__":
    asyncio.run(main())
