"""What somebody without a token can do to the console: not much, and not for long."""

from __future__ import annotations

import asyncio
import http.client
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from urllib.parse import quote

import pytest

from seriatim.console import app, samples, security, server
from seriatim.engine.broker import Outgoing
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.reported_status import AuditedSide, leave_audit
from tests.console.consoles import OPERATOR, VIEWER, running

AT_LEAST_S = 60


def connected(console, sent: str = "") -> socket.socket:
    link = socket.create_connection(("127.0.0.1", console.server.port), AT_LEAST_S)
    link.sendall(sent.encode())
    return link


def told(link: socket.socket) -> str:
    """What comes until the other side closes."""
    found = b""
    try:
        while part := link.recv(65536):
            found += part
    except ConnectionResetError:
        pass
    return found.decode()


def request(console, path: str, *headers: str, method: str = "GET", body: str = "") -> str:
    lines = [f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{console.server.port}", *headers]
    return "\r\n".join([*lines, "", body])


@pytest.mark.parametrize("begun", ["", "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow:"])
def test_headers_that_do_not_end_close_the_connection(tmp_path, monkeypatch, begun):
    monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 0.3)
    with running(tmp_path) as console, connected(console, begun) as link:
        assert told(link) == ""
        assert console.api("topics/list").status == 200, "and others are served"


def test_so_do_those_of_a_second_request(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 0.3)
    with running(tmp_path) as console, connected(console) as link:
        for path in ("/static/console.css", "/static/console.js"):
            link.sendall((request(console, path)).encode())
            answer = http.client.HTTPResponse(link)
            answer.begin()
            assert answer.read()
        time.sleep(0.5)  # quiet between requests: the connection is kept
        link.sendall(b"GET /login HTTP")
        assert told(link) == ""


def test_a_refused_body_is_not_read_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 0.3)
    with running(tmp_path) as console:
        headers = request(console, "/api/v1/topics/create", "Content-Length: 1000000", method="POST")
        with connected(console, headers) as link:
            link.recv(12)
            link.sendall(b"{")
            assert "401" not in told(link)[12:]


def test_a_login_that_does_not_end_is_given_up_and_a_long_one_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(security, "BODY_TIMEOUT_S", 0.3)
    with running(tmp_path) as console:
        headers = request(console, "/login", "Content-Length: 20", method="POST", body="token=")
        with connected(console, headers) as link:
            assert "200 OK" not in told(link)
        long = request(console, "/login", f"Content-Length: {security.MAX_LOGIN_BYTES + 1}", method="POST")
        with connected(console, long) as link:
            assert link.recv(65536).startswith(b"HTTP/1.1 413")
        endless = request(
            console, "/login", "Transfer-Encoding: chunked", method="POST", body="4000\r\n" + "x" * 0x4000
        )
        with connected(console, endless) as link:
            assert "200 OK" not in told(link)


def test_whoever_holds_connections_open_keeps_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server, "HEADERS_TIMEOUT_S", 3600.0)
    with running(tmp_path) as console, ExitStack() as stack:
        page = stack.enter_context(connected(console, _events(console)))
        assert page.recv(15) == b"HTTP/1.1 200 OK"
        idle = [stack.enter_context(connected(console)) for _ in range(4)]
        assert _asked(console).startswith("HTTP/1.1 200")
        assert [told(link) for link in idle[:2]] == ["", ""], "those were closed that came first"
        assert page.recv(15), "and who asked for something is served"


def test_connections_are_limited(tmp_path, monkeypatch):
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 3)
    with running(tmp_path) as console, ExitStack() as stack:
        for _ in range(3):
            page = stack.enter_context(connected(console, _events(console)))
            assert page.recv(15) == b"HTTP/1.1 200 OK"
        with connected(console) as link:
            assert told(link) == ""
        stack.close()
        while not (answer := _asked(console)):
            pass
        assert answer.startswith("HTTP/1.1 200")


def _events(console) -> str:
    return request(console, "/api/v1/events", f"Authorization: Bearer {OPERATOR}")


def _asked(console) -> str:
    with connected(console, request(console, "/login", "Connection: close")) as link:
        return told(link)


def test_one_token_can_t_take_all_the_pages_that_may_be_open(tmp_path, monkeypatch):
    monkeypatch.setattr(app, "MAX_PAGES_OF_ONE", 2)
    events = "/api/v1/events"
    with running(tmp_path) as console, ExitStack() as stack:
        for token in (OPERATOR, OPERATOR, "viewer-token"):
            link = stack.enter_context(connected(console, request(console, events, f"Authorization: Bearer {token}")))
            assert link.recv(15) == b"HTTP/1.1 200 OK"
        assert console.ask(events).status == 429
        stack.close()
        while console.server.console.open_pages.total():
            pass


def test_a_host_header_is_a_name_and_a_port(tmp_path):
    with running(tmp_path) as console:
        for host in ("{0}/login?", "{0}#", "{0}?x", "user@{0}", "{0}/static/x?", "evil.example", ""):
            named = host.format(f"127.0.0.1:{console.server.port}")
            sent = f"GET /api/v1/topics/list HTTP/1.1\r\nHost: {named}\r\nAuthorization: Bearer {OPERATOR}\r\n\r\n"
            with connected(console, sent) as link:
                assert link.recv(12) in {b"HTTP/1.1 421", b"HTTP/1.1 400"}, host


def test_no_way_of_writing_a_path_goes_around_the_token(tmp_path):
    with running(tmp_path) as console:
        for begun in ("/login/..", "/static/..", "/static/%2e%2e", "/", "/login%2f..", "/login;"):
            path = f"{begun}/api/v1/topics/list"
            with connected(console, request(console, path)) as link:
                assert link.recv(12) in {b"HTTP/1.1 401", b"HTTP/1.1 404"}, path


MARKUP = "\"><img src=x onerror=alert(1)><script>alert(1)</script>'{{7*7}}"


async def _hostile(engine) -> None:
    """Whatever somebody else may choose is markup."""
    await engine.create_topic("t")
    await engine.create_subscription("t", "s", SubscriptionOptions(message_ordering=True))
    await engine.publish("t", [Outgoing(MARKUP, MARKUP.encode(), {MARKUP: MARKUP})] * 3)
    await engine.dead_letter("s", MARKUP, MARKUP)
    await engine.pause_key("s", MARKUP, MARKUP)
    await leave_audit(engine, MARKUP, [AuditedSide(MARKUP, 1, 1, 1, 1, 1, MARKUP)])


def test_nothing_that_others_choose_becomes_markup(tmp_path):
    with running(tmp_path, _hostile) as console:
        console.api("keys/pause", {"subscription": "s", "key": MARKUP, "reason": MARKUP})
        told = quote(MARKUP)
        for page in (
            *(
                "/",
                "/pipelines",
                "/changes",
                f"/login?to={told}",
                f"/topics?search={told}",
                f"/subscription?name={told}",
            ),
            *(f"/topic?name=t&key={told}", f"/topic?name=t&start={told}", f"/subscription?name=s&search={told}"),
            *(f"/key?subscription=s&key={told}", f"/dead-letters?subscription=s&error={told}"),
        ):
            text = console.ask(page, headers={"Accept": "text/html"}).text
            assert "<img" not in text, page
            assert "alert(1)</script>" not in text, page


def test_half_a_surrogate_pair_does_not_break_the_list_of_changes(tmp_path):
    with running(tmp_path) as console:
        assert console.api("topics/create", {"name": "\ud800"}).status == 400
        (change,) = console.api("changes").json
        assert (change["operation"], change["arguments"]["name"]) == ("topics/create", "?")
        assert console.ask("/changes").status == 200


def test_a_body_that_can_t_be_parsed_is_the_callers_fault(tmp_path):
    body = "[" * 100_000
    headers = (f"Authorization: Bearer {OPERATOR}", "Content-Type: application/json", f"Content-Length: {len(body)}")
    with running(tmp_path) as console:
        sent = request(console, "/api/v1/topics/create", *headers, "Connection: close", method="POST", body=body)
        with connected(console, sent) as link:
            answer = told(link)
        assert answer.startswith(("HTTP/1.1 400", "HTTP/1.1 422"))
        assert "InvalidArgument" in answer


def test_one_token_can_t_make_delivery_wait_for_hundreds_of_looks(tmp_path, monkeypatch):
    """Looks take turns with deliveries: of many that are asked for at once, few are under way."""
    under_way, most = 0, dict[str, int]()

    with running(tmp_path) as console:
        list_keys = console.engine.list_keys

        async def slowly(subscription, **how):
            nonlocal under_way
            under_way += 1
            most["looks"] = max(most.get("looks", 0), under_way)
            await asyncio.sleep(0.05)
            under_way -= 1
            return await list_keys(subscription, **how)

        monkeypatch.setattr(console.engine, "list_keys", slowly)
        with ThreadPoolExecutor(20) as pool:
            asked = [
                *(pool.submit(console.api, "keys/list", subscription="shipping", token=VIEWER) for _ in range(10)),
                *(pool.submit(console.ask, "/subscription", name="shipping", search=str(i)) for i in range(10)),
            ]
            assert {one.result().status for one in asked} == {200}
    assert most["looks"] <= 2 * samples.AT_ONCE, "of the token, and of all pages together"


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_connection_that_comes_while_the_console_stops_is_closed(tmp_path, monkeypatch, turns):
    monkeypatch.setattr(server, "STOP_GRACE_S", 0.1)

    async def connect_and_stop(_: object) -> socket.socket:
        link = connected(console)
        for _turn in range(turns):  # it waits, is accepted, is being set up, is known to the server
            await asyncio.sleep(0)
        assert console.server._server is not None
        await console.server._server.shutdown()
        return link

    with running(tmp_path) as console, console.run(connect_and_stop) as link:
        link.settimeout(5)
        assert told(link) == ""
