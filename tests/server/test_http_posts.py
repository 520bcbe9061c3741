"""Posting to endpoints that answer in every way that HTTP allows, and in some that it does not."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from seriatim.server.push_delivery import Poster


class Endpoint:
    """Answers each request on a connection with the next of some bytes."""

    def __init__(self, *answers: bytes, host: str = "127.0.0.1") -> None:
        self._answers = list(answers)
        self._host = host
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __aenter__(self) -> Endpoint:
        self._server = await asyncio.start_server(self._serve, self._host, 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: Any) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self._answers:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                self.heads.append(head)
                size = next(int(line[15:]) for line in head.splitlines() if line.lower().startswith("content-length:"))
                self.bodies.append(await reader.readexactly(size))
                writer.write(self._answers.pop(0))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def post(*answers: bytes, url: str = "http://127.0.0.1:{port}/push?a=%2F", host: str = "127.0.0.1") -> Any:
    """Post once for each answer; returns what came of it, and the endpoint."""

    async def run() -> tuple[list[Any], Endpoint]:
        poster = Poster()
        async with Endpoint(*answers, host=host) as endpoint, asyncio.timeout(20):
            outcomes: list[Any] = []
            for _ in answers:
                try:
                    outcomes.append(await poster.post(url.format(port=endpoint.port), b"body", "application/json"))
                except Exception as error:  # noqa: BLE001 - what it is, is what is asked
                    outcomes.append(error)
            await poster.close()
            return outcomes, endpoint

    return asyncio.run(run())


def test_the_request_is_what_the_address_says():
    (status,), endpoint = post(b"HTTP/1.1 204 No Content\r\n\r\n")
    assert (status, endpoint.bodies) == (204, [b"body"])
    first, *fields = endpoint.heads[0].strip().split("\r\n")
    assert first == "POST /push?a=%2F HTTP/1.1", "as it was given, not unquoted and quoted again"
    assert f"Host: 127.0.0.1:{endpoint.port}" in fields
    assert "Content-Type: application/json" in fields


def test_a_connection_is_used_again():
    outcomes, endpoint = post(*[b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"] * 5)
    assert (outcomes, endpoint.connections) == ([200] * 5, 1)


@pytest.mark.parametrize("interim", [b"100 Continue", b"102 Processing", b"103 Early Hints"])
def test_the_status_after_an_interim_answer_counts(interim):
    (status,), _ = post(b"HTTP/1.1 " + interim + b"\r\n\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n")
    assert status == 500


def test_an_overlong_header_is_an_error_and_the_next_post_works():
    long = b"HTTP/1.1 200 OK\r\nX: " + b"x" * 1_000_000 + b"\r\n\r\n"
    (error, status), _ = post(long, b"HTTP/1.1 204 No Content\r\n\r\n")
    assert isinstance(error, Exception)
    assert status == 204


def test_what_is_no_http_is_an_error():
    (error,), _ = post(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    assert isinstance(error, Exception)


def test_a_redirection_is_not_followed():
    outcomes, endpoint = post(b"HTTP/1.1 302 Found\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
    assert (outcomes, len(endpoint.heads)) == ([302], 1)


def test_the_body_of_an_answer_is_not_read():
    """It announces a gigabyte, and the status is there at once."""
    (status, again), endpoint = post(*[b"HTTP/1.1 200 OK\r\nContent-Length: 1000000000\r\n\r\nonly this"] * 2)
    assert (status, again) == (200, 200)
    assert endpoint.connections == 2, "a connection with the rest of an answer on it is not used again"


def test_an_ipv6_address_stands_in_brackets():
    (status,), endpoint = post(b"HTTP/1.1 204 No Content\r\n\r\n", url="http://[::1]:{port}/", host="::1")
    assert status == 204
    assert f"Host: [::1]:{endpoint.port}" in endpoint.heads[0]


def test_user_and_password_are_sent_as_basic_authentication():
    (status,), endpoint = post(b"HTTP/1.1 204 No Content\r\n\r\n", url="http://me:p%40ss@127.0.0.1:{port}/")
    assert status == 204
    assert "Authorization: Basic bWU6cEBzcw==" in endpoint.heads[0]
    assert endpoint.heads[0].startswith("POST / HTTP/1.1")


def test_cookies_are_not_kept():
    answer = b"HTTP/1.1 200 OK\r\nSet-Cookie: a=b\r\nContent-Length: 0\r\n\r\n"
    _, endpoint = post(answer, answer)
    assert "Cookie" not in endpoint.heads[1]
