"""A program that uses Google's own Python client against our server while everything around it breaks, and records what it saw.

    python -m tests.nemesis.official_client '{"url": "host:port", "who": …, "folder": …, "seed": …, "life": …}'

It publishes with ordering keys and consumes with exactly-once delivery, until SIGTERM.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NoReturn

from google.api_core.exceptions import AlreadyExists, GoogleAPICallError, RetryError
from google.cloud.pubsub_v1.publisher.exceptions import PublishToPausedOrderingKeyException
from google.cloud.pubsub_v1.subscriber.exceptions import AcknowledgeError, AcknowledgeStatus

from tests.nemesis.client import (
    BEAT_S,
    GRAVES,
    KEYS,
    LIMITED,
    MAX_ATTEMPTS,
    NUMBERS_OF_A_LIFE,
    STALLED_S,
    STRICT,
    Life,
    Seen,
)
from tests.nemesis.history import Recorder
from tests.server.served import Clients

PROJECT = "projects/seriatim"
EVENTS, DEAD = f"{PROJECT}/topics/events", f"{PROJECT}/topics/dead"
ANSWER_S = 10.0
"""How long a handler waits for the answer to its ack. Later messages of its key are on hold meanwhile, and may be lost by then:
so this is less than NOTICED_AFTER_S in official.py, with room for a slow handler."""
AT_ONCE = 20


class Client:
    """One life of one client."""

    def __init__(self, life: Life) -> None:
        self._life = life
        self._random = Random(f"{life.seed} {life.who} {life.life}")
        self._record = Recorder(Path(life.folder), life.who)
        self._clients = Clients(life.url)
        self._publisher = self._clients.publisher()
        self._lock = threading.Lock()
        self._leases = life.life * NUMBERS_OF_A_LIFE
        self._numbers = dict.fromkeys([f"{life.who}/{n}" for n in range(KEYS)], life.life * NUMBERS_OF_A_LIFE)
        self._retries: dict[str, Any] = self._random.choice([{}, {"retry": None}])
        """Half of the lives retry by themselves, and may so publish a message twice."""
        self._under_way = threading.Semaphore(AT_ONCE)
        self.stopping = threading.Event()

    def prepare(self) -> None:
        subscriber = self._clients.subscriber()
        for topic in (EVENTS, DEAD):
            with suppress(AlreadyExists):
                self._publisher.create_topic(name=topic)
        backoff = {"minimum_backoff": {"nanos": 10_000_000}, "maximum_backoff": {"nanos": 200_000_000}}
        common = {"enable_message_ordering": True, "enable_exactly_once_delivery": True, "retry_policy": backoff}
        letters = {"dead_letter_topic": DEAD, "max_delivery_attempts": MAX_ATTEMPTS}
        for name, topic, more in (
            (GRAVES, DEAD, {}),
            (STRICT, EVENTS, {}),
            (LIMITED, EVENTS, {"dead_letter_policy": letters}),
        ):
            wanted = {"name": f"{PROJECT}/subscriptions/{name}", "topic": topic, **common, **more}
            with suppress(AlreadyExists):
                subscriber.create_subscription(request=wanted)

    # -- consuming ------------------------------------------------------------------------------------------------------

    def consume(self) -> None:
        for name in (STRICT, LIMITED, GRAVES):
            self._clients.subscribe(self._handler(name), f"{PROJECT}/subscriptions/{name}")

    def _handler(self, sub: str) -> Callable[[Any], None]:
        def handle(message: Any) -> None:
            with self._lock:
                self._leases += 1
                lease = self._leases
            seen: Seen = {"sub": sub, "key": message.ordering_key, "number": int(message.data), "lease": lease}
            self._record("delivered", attempt=message.delivery_attempt or 0, id=message.message_id, **seen)
            self._work_on(message, seen)
            self._record("returned", **seen)

        return handle

    def _work_on(self, message: Any, seen: Seen) -> None:
        time.sleep(self._random.choice([0, 0, 0.001, 0.02]))
        fate = self._random.random()
        if fate < 0.85 or seen["sub"] == GRAVES:
            self._ack(message, seen)
        elif fate < 0.95:
            self._record("nack", **seen)
            message.nack()
        else:
            time.sleep(self._random.choice([0.5, 2.5]))
            self._ack(message, seen)

    def _ack(self, message: Any, seen: Seen) -> None:
        self._record("ack", **seen)
        if self._random.random() < 0.3:
            message.ack()
            return
        try:
            answer = message.ack_with_response().result(ANSWER_S)
        except AcknowledgeError as error:
            if error.error_code is AcknowledgeStatus.INVALID_ACK_ID:  # the client may have asked more than once
                self._record("unsure", **seen)
        except TimeoutError:
            pass  # nobody knows
        else:
            assert answer is AcknowledgeStatus.SUCCESS
            self._record("acked", **seen)

    # -- publishing -----------------------------------------------------------------------------------------------------

    def publish(self) -> None:
        while not self.stopping.wait(self._random.choice([0.001, 0.01, 0.05])):
            if self._under_way.acquire(timeout=1):
                self._publish_one()

    def _publish_one(self) -> None:
        key = self._random.choice(list(self._numbers))
        number = self._numbers[key]
        self._numbers[key] += 1
        self._record("publish", key=key, number=number)
        try:
            future = self._publisher.publish(EVENTS, str(number).encode(), ordering_key=key, **self._retries)
        except PublishToPausedOrderingKeyException:
            self._record("refused", key=key, number=number)
            self._under_way.release()
            self._publisher.resume_publish(EVENTS, key)
        else:
            future.add_done_callback(lambda done: self._on_published(done, key, number))

    def _on_published(self, done: Any, key: str, number: int) -> None:
        self._under_way.release()
        if done.exception() is None:
            self._record("published", key=key, number=number, id=done.result())

    def watch(self) -> None:
        """Write down when this process got no processor for a while: what it does then, it does late."""
        while True:
            begun = time.monotonic()
            time.sleep(BEAT_S)
            if (stalled := time.monotonic() - begun) > STALLED_S:
                self._record("stalled", body=f"{stalled:.3f}")

    def close(self) -> NoReturn:
        """Give back what was delivered, and end.

        A handler may still wait for the answer to its ack, and the publisher may still retry. Both would go on, or complain, so
        they are cut short.
        """
        with suppress(TimeoutError):
            self._clients.end_pulls()
        os._exit(0)


def live(life: Life) -> None:
    client = Client(life)
    signal.signal(signal.SIGTERM, lambda *_: client.stopping.set())
    client.prepare()
    client.consume()
    threading.Thread(target=client.watch, daemon=True).start()
    client.publish()
    client.close()


if __name__ == "__main__":
    logging.getLogger("google.cloud.pubsub_v1").setLevel(logging.CRITICAL)  # it shows each lost lease with a traceback
    try:
        live(Life(**json.loads(sys.argv[1])))
    except (GoogleAPICallError, RetryError) as error:  # the server was away for too long: the next life tries again
        sys.exit(f"ended: {type(error).__name__}: {error}")
