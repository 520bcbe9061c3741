"""Pipes over real datagrams on loopback, and what strangers can send there."""

from __future__ import annotations

import asyncio
import socket
from random import Random

import pytest

from seriatim.core.guarantees import DeliveryMode, Guarantee, Level
from seriatim.core.pipes.protocol import Confirm, Data, Hello, Welcome
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.pipes import Pipe, Udp, Watch, indexed, sequential
from seriatim.pipes.frames import HEAD_BYTES, encode, seal
from tests.pipes.chains import pass_through
from tests.pipes.test_wire import garbage


def bounded(scenario, seconds: float = 30):
    async def run():
        async with asyncio.timeout(seconds):
            return await scenario

    return asyncio.run(run())


def test_datagrams_promise_nothing():
    route = Udp()
    assert (route.order, route.mode) == (Guarantee.NONE, DeliveryMode.BEST_EFFORT)
    assert route.explain().guarantee == Guarantee.NONE


@pytest.mark.parametrize("make", [indexed, sequential])
@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_a_pipe_over_udp_is_absolute(make, host):
    try:
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        pytest.skip(f"this machine has no {host}")
    assert bounded(pass_through(make(Udp(host=host, secret=b"s3cret")), 500)) == list(range(1, 501))


def test_messages_as_large_as_datagrams_allow():
    async def scenario() -> int:
        sizes: list[int] = []

        async def deliver(message: bytes) -> None:
            sizes.append(len(message))

        pipe = Pipe(Udp(max_datagram=65_507))
        async with pipe.run(deliver) as inlet:
            await inlet.send(b"x" * pipe.max_frame)
            with pytest.raises(InvalidArgument, match="does not fit into a frame"):
                await inlet.send(b"x" * (pipe.max_frame + 1))
        return sum(sizes)

    assert bounded(scenario()) == 65_507 - 8 - HEAD_BYTES - 4


def test_a_pipe_over_two_sockets_at_once():
    assert bounded(pass_through(Pipe(Udp(), Udp()), 2_000)) == list(range(1, 2_001))


# --- strangers --------------------------------------------------------------------------------------------------------


def test_a_route_stays_on_this_machine_unless_both_ends_share_a_secret():
    for host in ("0.0.0.0", "192.0.2.1", "::", "example.org"):
        with pytest.raises(InvalidArgument, match="leaves this machine: give it a secret"):
            Udp(7000, host)
        Udp(7000, host, secret=b"s3cret")
    with pytest.raises(InvalidArgument, match="at most 64 bytes"):
        Udp(secret=b"x" * 65)
    with pytest.raises(InvalidArgument, match="no datagram is larger"):
        Udp(max_datagram=70_000)


def test_a_sender_must_know_where_to_send():
    with pytest.raises(FailedPrecondition, match="the port of the receiver is not known"):
        bounded(Udp().open_sender(lambda _: None))


def hostile_datagrams(random: Random, count: int, secret: bytes) -> list[bytes]:
    """Garbage, sealed and not, and frames that would do harm if anybody believed them."""
    forged = [
        encode(Hello(1 << 90)),
        encode(Data(1 << 90, 1, 1 << 80, 1 << 80, (b"666",))),
        encode(Welcome(1, 1 << 90, 1)),
        encode(Confirm(1, 1, 1 << 90, 1 << 90)),
    ]
    return [
        random.choice(
            [
                random.randbytes(random.randrange(200)),
                garbage(random, forged),
                seal(garbage(random, forged), secret),
                seal(random.choice(forged), secret),
            ]
        )
        for _ in range(count)
    ]


def test_what_strangers_send_to_a_route_with_a_secret_is_not_even_looked_at():
    async def scenario() -> tuple[list[int], Watch]:
        received: list[int] = []
        watch, route, random = Watch(), Udp(secret=b"s3cret"), Random(5)

        async def deliver(message: bytes) -> None:
            received.append(int(message))

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            async with Pipe(route).run(deliver, watch=watch) as inlet:
                for number, datagram in enumerate(hostile_datagrams(random, 2_000, b"guess"), start=1):
                    stranger.sendto(datagram, route.address)
                    await inlet.send(b"%d" % number)
                    if number % 20 == 0:
                        await asyncio.sleep(0)
        return received, watch

    received, watch = bounded(scenario())
    assert received == list(range(1, 2_001))
    assert watch.verdict().level is Level.ABSOLUTE


def test_garbage_does_no_harm_to_a_route_without_a_secret_either():
    async def scenario() -> list[int]:
        received: list[int] = []
        route, random = Udp(), Random(6)

        async def deliver(message: bytes) -> None:
            received.append(int(message))

        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            async with Pipe(route).run(deliver) as inlet:
                for number in range(1, 2_001):
                    stranger.sendto(random.randbytes(random.randrange(200)), route.address)
                    await inlet.send(b"%d" % number)
                    if number % 20 == 0:
                        await asyncio.sleep(0)
        return received

    assert bounded(scenario()) == list(range(1, 2_001))


def test_a_sender_hears_nobody_but_its_receiver():
    async def scenario() -> list[bytes]:
        heard: list[bytes] = []
        arrived = {"there": asyncio.Event(), "back": asyncio.Event()}

        def on_frame(frame: bytes) -> None:
            heard.append(frame)
            arrived["back"].set()

        route = Udp()
        receiver = await route.open_receiver(lambda _: arrived["there"].set())
        sender = await route.open_sender(on_frame)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as stranger:
            stranger.sendto(seal(b"stranger"), sender.local_address)  # type: ignore[attr-defined]
        sender.send(b"hello")
        await arrived["there"].wait()
        receiver.send(b"friend")
        await arrived["back"].wait()
        await receiver.close()
        await sender.close()
        return heard

    assert bounded(scenario()) == [b"friend"]


def test_sending_where_nobody_listens_is_a_loss_and_no_error():
    async def scenario() -> None:
        route = Udp()
        await (await route.open_receiver(lambda _: None)).close()
        sender = await route.open_sender(lambda _: None)
        for _ in range(3):
            sender.send(b"anybody?")
            await asyncio.sleep(0.001)
        await sender.close()

    bounded(scenario())
