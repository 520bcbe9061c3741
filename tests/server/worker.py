"""A subscriber process: prints when it got which message, and acks it after a while. Ends when its input does."""

from __future__ import annotations

import sys
import time

from tests.server.served import Clients


def main() -> None:
    clients = Clients(sys.argv[1])

    def work(message):
        say(str(time.monotonic_ns()), message.ordering_key, message.data.decode())
        time.sleep(0.002)  # so that a message is out when the server is killed, and both processes get some
        message.ack()

    clients.subscribe(work)
    say("ready")
    sys.stdin.read()
    clients.close()


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
