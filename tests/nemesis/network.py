"""A network of its own for each round: every program in a network namespace, all of them on one bridge.

A link can be cut (nothing passes), cut in one direction (what is sent is lost, what comes is heard, or the other way round) and
slowed down (16 kbit/s, and what does not fit in a short queue is lost). Namespaces need root. Those that a killed run left
behind are removed by the next one.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack
from functools import cache
from random import Random

from tests.debian import NotAvailable, find_program
from tests.nemesis.fault import Fault
from tests.nemesis.program import Program, Surroundings

PREFIX = "seriatim-nemesis-"
SUBNET = "10.77.0"
IPROUTE = ("iproute2", "libbpf1", "libelf1", "libmnl0", "libbsd0", "libmd0", "libcap2", "libxtables12", "libtirpc3")
NOTHING_PASSES = "tbf rate 8bit burst 1 limit 1"
LITTLE_PASSES = "tbf rate 16kbit burst 1600 limit 8000"
LASTS_S = (0.5, 2.0, 5.0, 12.0)


class Network:
    """A bridge in a namespace of its own, and a namespace for each program that joins."""

    def __init__(self, cleanup: ExitStack) -> None:
        self._cleanup = cleanup
        self._count = 0
        self.hub = self._add_namespace("hub")
        ip("-n", self.hub, "link", "add", "name", "bridge0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "dev", "bridge0", "up")

    def join(self, name: str, address: str | None = None) -> Link:
        """``address``: that of a machine that is gone, which this one replaces."""
        self._count += 1
        link = Link(self._add_namespace(name), self.hub, f"to-{name}", address or f"{SUBNET}.{self._count}")
        ip(
            "-n",
            self.hub,
            "link",
            "add",
            "name",
            link.port,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            link.namespace,
        )
        ip("-n", self.hub, "link", "set", "dev", link.port, "master", "bridge0", "up")
        ip("-n", link.namespace, "address", "add", f"{link.address}/24", "dev", "eth0")
        for device in ("lo", "eth0"):
            ip("-n", link.namespace, "link", "set", "dev", device, "up")
        return link

    def _add_namespace(self, name: str) -> str:
        namespace = f"{PREFIX}{os.getpid()}-{name}"
        ip("netns", "add", namespace)
        self._cleanup.callback(ip, "netns", "delete", namespace)
        return namespace


class Link(Surroundings):
    """What a program is connected with: ``eth0`` in its namespace, and a port of the bridge."""

    def __init__(self, namespace: str, hub: str, port: str, address: str) -> None:
        self.namespace, self.port, self.address = namespace, port, address
        self._hub = hub

    @property
    def prefix(self) -> Sequence[str]:
        return ["nsenter", f"--net=/run/netns/{self.namespace}"]

    def cut(self) -> None:
        ip("-n", self._hub, "link", "set", "dev", self.port, "down")

    def lose_what_is_sent(self) -> None:
        self._limit(self.namespace, "eth0", NOTHING_PASSES)

    def lose_what_comes(self) -> None:
        self._limit(self._hub, self.port, NOTHING_PASSES)

    def slow_down(self) -> None:
        self._limit(self.namespace, "eth0", LITTLE_PASSES)
        self._limit(self._hub, self.port, LITTLE_PASSES)

    def mend(self) -> None:
        ip("-n", self._hub, "link", "set", "dev", self.port, "up")
        for namespace, device in ((self.namespace, "eth0"), (self._hub, self.port)):
            _run("tc", "-n", namespace, "qdisc", "delete", "dev", device, "root", check=False)

    def _limit(self, namespace: str, device: str, discipline: str) -> None:
        _run("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *discipline.split())


class _NetworkFault(Fault):
    def missing(self) -> str | None:
        return why_not()

    def fits(self, program: Program) -> bool:
        return program.find(Link) is not None

    def apply(self, program: Program, random: Random) -> float:
        program.record("impaired")
        self.act(program.get(Link), random)
        return random.choice(LASTS_S)

    def act(self, link: Link, random: Random) -> None:
        raise NotImplementedError

    def heal(self, program: Program) -> None:
        program.get(Link).mend()
        program.record("continued")


class Cut(_NetworkFault):
    """Nothing passes, in one direction or both. Nobody is told: connections stay as they are."""

    name, counted_as, weight = "cut", "network cuts", 3

    def act(self, link: Link, random: Random) -> None:
        random.choice([link.cut, link.cut, link.lose_what_is_sent, link.lose_what_comes])()


class SlowNetwork(_NetworkFault):
    name, counted_as = "slow network", "slow networks"

    def act(self, link: Link, random: Random) -> None:
        link.slow_down()


NETWORK: list[Fault] = [Cut(), SlowNetwork()]


@cache
def why_not() -> str | None:
    """Why this machine has no network namespaces for us."""
    try:
        with ExitStack() as cleanup:
            Network(cleanup).join("probe").slow_down()
    except (NotAvailable, OSError, subprocess.SubprocessError) as error:
        said = getattr(error, "stderr", None) or b""
        return f"no network namespaces: {error} {said.decode().strip()}"
    return None


def ip(*words: str) -> str:
    return _run("ip", *words)


def _run(name: str, *words: str, check: bool = True) -> str:
    program = find_program(name, IPROUTE, f"sbin/{name}")
    ran = subprocess.run([program.path, *words], env=program.environment, check=check, capture_output=True, timeout=30)
    return ran.stdout.decode()
