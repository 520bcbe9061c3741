"""Ports for servers that are started, or started again, by a test.

A port that the system hands out for a moment may be handed out again, to a connection of another test, before the server takes
it. So these lie below the ports that the system hands out, and each process of a test run has its own share of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from itertools import chain
from pathlib import Path

HOST = "127.0.0.1"
SHARES, SHARE = 16, 500


def free_port() -> int:
    """A port that nobody listens at, TCP or UDP, and that this process was not given before."""
    for port in _ports:
        if _is_free(port):
            return port
    raise RuntimeError("no port is left of this process's share")


def _share() -> Iterator[int]:
    worker = os.environ.get("PYTEST_XDIST_WORKER", "")
    number = int(worker.removeprefix("gw") or os.getpid()) % SHARES
    last = _first_of_the_system() - 1 - number * SHARE
    share = range(last - SHARE + 1, last + 1)
    begin = os.getpid() % SHARE  # two runs on one machine do not try the same port first
    return chain(share[begin:], share[:begin])


def _first_of_the_system() -> int:
    try:
        return max(20_000, int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return 32_768


def _is_free(port: int) -> bool:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as probe:
            try:
                probe.bind((HOST, port))
            except OSError:
                return False
    return True


_ports = _share()
