"""The admin API: what it offers, who may use it, and whom it refuses."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI

from seriatim.console import ConsoleServer, mount
from seriatim.console.security import HEADERS, LOGINS_AT_ONCE, MAX_BODY_BYTES
from seriatim.engine import operator_actions, overview
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Outgoing, StoreCheck
from seriatim.engine.connect import open_broker
from seriatim.engine.consumer import Consumer
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.errors import InvalidArgument, StoreFailed
from tests.console.consoles import BLIND, PUBLISHER, VIEWER, Running, handle_all, orders, running, tokens_file


@pytest.fixture(scope="module")
def console(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with running(tmp_path_factory.mktemp("console")) as one:
        yield one


@pytest.fixture
def fresh(tmp_path: Path) -> Iterator[Running]:
    """A console that a test may change."""
    with running(tmp_path) as one:
        yield one


def operations(console: Running) -> list[tuple[str, str]]:
    """Every operation of the description: its method and path."""
    description = console.api("openapi.json").json
    return [(method, path) for path, methods in description["paths"].items() for method in methods]


# -- looking ----------------------------------------------------------------------------------------------------------


def test_keys_are_listed_with_why_they_wait(console):
    keys = console.api("keys/list", subscription="shipping").json
    assert [(key["key"], key["state"]) for key in keys[:2]] == [("order-2", "paused"), ("order-3", "delayed")]
    assert keys[0]["why"].startswith("paused: the customer complained, since ")
    assert {key["state"] for key in keys[2:]} == {"ready"}


def test_blocked_keys_are_grouped_by_why_they_are_blocked_and_counted_by_state(fresh):
    for number in (4, 5):
        fresh.api("keys/pause", {"subscription": "shipping", "key": f"order-{number}", "reason": f"call {number}"})
    groups = fresh.api("keys/groups", subscription="shipping").json
    assert [(one["state"], one["reason"], one["keys"], one["example"]) for one in groups] == [
        ("paused", "call #", 2, "order-4"),
        ("delayed", "no error given", 1, "order-3"),
        ("paused", "the customer complained", 1, "order-2"),
    ]
    assert len(fresh.api("keys/groups", subscription="shipping", limit=1).json) == 1
    page = fresh.ask("/subscription", name="shipping").text
    states = re.sub(r"<[^>]*>|\s+", " ", re.findall(r'<p id="states">(.*?)</p>', page, re.DOTALL)[0])
    assert " ".join(states.split()) == "paused 3 delayed 1 ready 2 in flight or being settled 0"
    assert "call #" in page


def test_the_page_of_a_topic_shows_every_subscription_with_its_backlog(fresh):
    async def many(engine: Engine) -> None:
        for number in range(55):
            await engine.create_subscription("orders", f"z-{number:02}", SubscriptionOptions())
        await handle_all(engine)

    fresh.run(many)
    page = fresh.ask("/topic", name="orders").text
    rows = re.findall(r"<tr><td><a [^>]*>(.*?)</a><td class=.n.>(\d+)", page)
    assert len(rows) == 50
    assert rows[0][0] == "shipping"
    assert int(rows[0][1]) > 0
    assert fresh.ask("/topic", name="orders", after=rows[-1][0]).text.count("/subscription?name=z-") == 6


def test_keys_are_filtered_and_paged_by_the_engine(console):
    def listed(**how: object) -> list[str]:
        return [key["key"] for key in console.api("keys/list", subscription="shipping", **how).json]

    assert listed(state="delayed") == ["order-3"]
    assert listed(search="er-4") == ["order-4"]
    assert listed(search="nobody") == []
    everything = listed(order="oldest")
    assert [*listed(order="oldest", limit=2), *listed(order="oldest", limit=9, skip=2)] == everything


def test_a_key_is_described_with_its_lane_and_what_happened_to_it(console):
    found = console.api("keys/describe", subscription="shipping", key="order-3").json
    assert [one["state"] for one in found["positions"]] == ["delayed", *["waiting"] * 6]
    gone = console.api("keys/describe", subscription="shipping", key="order-1").json
    assert {one["state"] for one in gone["positions"]} == {"dead-lettered"}
    assert {one["event"] for one in gone["events"]} == {"dead-lettered", "published"}
    assert gone["explanation"]["sentence"].startswith("it has no messages")
    paused = console.api("keys/describe", subscription="shipping", key="order-2").json
    assert next((one["event"], one["detail"]) for one in paused["events"]) == ("paused", "the customer complained")


def test_a_key_shows_what_is_settled_while_the_topic_keeps_it(fresh):
    assert fresh.api("keys/skip", {"subscription": "shipping", "key": "order-0"}).json == "0"
    found = fresh.api("keys/describe", subscription="shipping", key="order-0").json
    assert found["positions"][0] | {"published": ""} == {
        "id": "0", "state": "settled", "published": "", "size": 9, "attempts": 0, "error": None,
    }  # fmt: skip
    assert {one["event"] for one in found["events"]} == {"skipped", "published"}


def test_the_page_of_a_key_says_how_far_back_it_was_searched_and_leads_to_the_rest(fresh, monkeypatch):
    assert 'id="earlier"' not in fresh.ask("/key", subscription="shipping", key="order-6").text
    monkeypatch.setattr(operator_actions, "LOOK_BACK", 2)
    monkeypatch.setattr(overview, "READ_AT_MOST", overview.READ_AT_ONCE)
    fresh.run(lambda engine: engine.publish("orders", [Outgoing("order-0", b"x")] * 200 + [Outgoing("rare", b"y")]))
    said = fresh.ask("/key", subscription="shipping", key="rare").text
    assert "Only messages from 247 on were looked through" in said
    assert 'href="/topic?name=orders&amp;key=rare&amp;start=0"' in said
    said = fresh.ask("/topic", name="orders", key="rare", start="0").text
    assert "None of this key from 0 to below 100: go on with the next page." in said


def test_the_page_of_a_topic_passes_ids_on_without_looking_into_them(fresh):
    answer = fresh.ask("/topic", name="orders", start="7-3", headers={"Accept": "text/html"})
    assert answer.status == 400
    assert "is not the id of a message" in answer.text


def test_messages_without_a_key_are_what_is_asked_about_when_no_key_is_named(fresh):
    fresh.run(lambda engine: engine.publish("orders", [Outgoing(None, b"no key", None, 60.0)]))
    assert fresh.api("keys/why", subscription="shipping").json["waits_for"] == "time"
    assert fresh.api("keys/describe", subscription="shipping").json["positions"][0]["state"] == "delayed"
    assert fresh.api("keys/retry", {"subscription": "shipping"}).status == 422  # a change has to say it
    assert fresh.api("keys/retry", {"subscription": "shipping", "key": None}).status == 200


def test_the_overview_has_figures_of_the_whole_store_and_who_is_worst_off(console):
    found = console.api("overview").json
    figures = [found[name] for name in ("topics", "subscriptions", "messages", "dead_letters", "keys", "blocked_keys")]
    assert figures == [1, 1, 42, 7, 6, 2]
    assert found["published"]["published"] == 49
    assert [one["subscription"] for one in found["worst"]] == ["shipping"]
    assert console.api("overview", search="nothing").json["worst"] == []


def test_the_overview_names_keys_that_are_stuck_and_says_why(fresh):
    def stuck() -> list[str]:
        page = fresh.ask("/").text.partition('<ul id="stuck">')[2].partition("</ul>")[0]
        return [" ".join(re.sub(r"<[^>]*>", "", one).split()) for one in page.split("<li>")[1:]]

    (said,) = stuck()
    assert re.fullmatch(
        r"order-2 of shipping, message 2 from [\d.]+ s ago: paused: the customer complained, since .* UTC; resume the key to "
        r"continue\.",
        said,
    )

    async def slow(engine: Engine) -> None:
        for key in ("order-2", "order-3"):
            await engine.dead_letter("shipping", key, rest=True)
        await engine.resume_key("shipping", "order-2")
        now = engine.now
        engine.now = lambda: now() + 120  # type: ignore[method-assign]
        engine.attach("shipping", Consumer(lambda _: None))  # it hangs
        while (await engine.explain("shipping", "order-0")).waits_for != "outcome":  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    fresh.run(slow)
    fresh.server.console.looks.clear()
    (said,) = stuck()
    assert said.startswith(
        "order-0 of shipping, message 0 from 2 min 0 s ago: message 0 is in flight (attempt 1), since"
    )


def test_the_overview_speaks_of_subscriptions_that_it_does_not_show(fresh, monkeypatch):
    async def crowd(engine: Engine) -> None:
        for number in range(60):
            await engine.create_subscription("orders", f"crowd-{number:02}", SubscriptionOptions(message_ordering=True))
            await engine.pause_key(f"crowd-{number:02}", "k")
        await engine.create_topic("quiet")
        await engine.create_subscription("quiet", "deserted", SubscriptionOptions())
        monkeypatch.setattr(engine, "now", lambda now=engine.now: now() - 7200)
        await engine.publish("quiet", [Outgoing(None, b"x")])
        monkeypatch.undo()

    fresh.run(crowd)
    page = fresh.ask("/").text
    assert page.count('/subscription?name=deserted"') == 1, "only on top"
    assert 'Nobody consumes, although messages wait: <a href="/subscription?name=shipping"' in page
    assert re.search(r"Oldest waiting</span><strong>2 h 0 min", page)


def test_the_overview_shows_how_the_store_is(fresh):
    assert fresh.api("store/check").json["messages"] == 49
    assert fresh.api("store/health").json["last_problem"] is None
    assert "Store</span><strong>healthy" in fresh.ask("/").text

    async def fail(engine: Engine) -> None:
        engine.recovery.failed(StoreFailed("disk <full>"))

    fresh.run(fail)
    fresh.server.console.looks.clear()
    page = fresh.ask("/").text
    assert "Store</span><strong>failed before" in page
    assert "disk &lt;full&gt;" in page


def test_payloads_need_a_permission_of_their_own(console):
    shown = console.api("keys/peek", subscription="shipping", key="order-4", limit=1).json["messages"]
    assert [(one["data"], one["encoding"], one["attributes"]) for one in shown] == [("data of 4", "text", {"n": "4"})]
    for path, asked in (
        ("keys/peek", {"subscription": "shipping", "key": "order-4"}),
        ("messages/read", {"topic": "orders"}),
    ):
        for one in console.api(path, token=BLIND, **asked).json["messages"]:
            assert (one["data"], one["encoding"], one["attributes"]) == (None, None, {})
    assert console.api("dead-letters/download", token=BLIND, subscription="shipping").status == 403
    assert console.api("store/backup", {}, token=BLIND).status == 403
    assert "data of 4" not in console.ask("/key", token=BLIND, subscription="shipping", key="order-4").text
    assert "data of 4" in console.ask("/key", subscription="shipping", key="order-4").text


def test_data_that_is_no_text_is_base64(fresh):
    sent = {"data": "/w==", "encoding": "base64", "key": "raw"}
    (new,) = fresh.api("messages/publish", {"topic": "orders", "messages": [sent]}).json
    (read,) = fresh.api("messages/read", topic="orders", start=new).json["messages"]
    assert (read["data"], read["encoding"], read["key"]) == ("/w==", "base64", "raw")


def test_messages_of_a_key_are_read_page_by_page(console):
    first = console.api("messages/read", topic="orders", key="order-5", limit=3).json
    rest = console.api("messages/read", topic="orders", key="order-5", start=first["next"]).json
    assert [one["id"] for one in [*first["messages"], *rest["messages"]]] == ["5", "12", "19", "26", "33", "40", "47"]
    assert rest["next"] is None


# -- changing ---------------------------------------------------------------------------------------------------------


def test_a_delayed_key_is_retried(fresh):
    assert fresh.api("keys/retry", {"subscription": "shipping", "key": "order-3"}).status == 200
    assert fresh.api("keys/why", subscription="shipping", key="order-3").json["waits_for"] == "consumer"


def test_a_redrive_is_previewed_and_then_done(fresh):
    fresh.run(lambda engine: engine.publish("orders", [Outgoing("order-1", b"later")]))
    assert fresh.api("dead-letters/groups", subscription="shipping").json[0] | {"first": "", "last": ""} == {
        "error": "card # was declined", "letters": 7, "returnable": 7, "keys": 1, "first": "", "last": "", "example": "43",
    }  # fmt: skip
    assert fresh.api("dead-letters/preview", subscription="shipping").json == {
        "letters": 7,
        "in_place": 7,
        "refused": [],
    }
    fresh.run(handle_all)
    while fresh.api("keys/why", subscription="shipping", key="order-1").json["waits_for"] != "messages":
        pass
    preview = fresh.api("dead-letters/preview", subscription="shipping", error="card # was declined").json
    assert (preview["in_place"], [one["letters"] for one in preview["refused"]]) == (0, [7])
    assert "a later message of the key was settled" in preview["refused"][0]["reason"]
    asked = {"subscription": "shipping", "error": "card # was declined"}
    assert sum(fresh.api("dead-letters/redrive-all", asked).json["refused"].values()) == 7
    assert fresh.api("dead-letters/redrive-all", {**asked, "append": True}).json == {"redriven": 7, "refused": {}}
    assert fresh.api("dead-letters/list", subscription="shipping").json == []


def test_dead_letters_are_downloaded_with_their_data(console):
    answer = console.api("dead-letters/download", subscription="shipping", error="card # was declined")
    lines = [json.loads(line) for line in answer.text.splitlines()]
    assert [(line["key"], line["data"]) for line in lines[:2]] == [("order-1", "data of 1"), ("order-1", "data of 8")]
    assert "attachment" in answer.headers["Content-Disposition"]


def test_options_are_checked_as_everywhere(fresh):
    def update(**options: object) -> tuple[int, str]:
        asked = {"name": "shipping", "options": options, "fields": list(options)}
        answer = fresh.api("subscriptions/update", asked)
        return answer.status, answer.text

    assert update(retry={"min_backoff": -1})[0] == 400
    assert update(ack_deadline=30)[0] == 200
    assert fresh.api("subscriptions/describe", name="shipping").json["options"]["ack_deadline"] == 30


def test_a_backup_is_downloaded(tmp_path):
    with running(tmp_path, url=f"sqlite:///{tmp_path / 'a.db'}") as console:
        asked = urllib.request.Request(
            f"{console.address}/api/v1/store/backup", b"{}", {"Authorization": "Bearer operator-token"}
        )
        with urllib.request.urlopen(asked) as answer:
            (tmp_path / "copy.db").write_bytes(answer.read())
    with sqlite3.connect(tmp_path / "copy.db") as copy:
        assert copy.execute("pragma integrity_check").fetchone() == ("ok",)
    copy.close()


def test_every_change_is_logged_with_who_what_and_how_it_ended(fresh, caplog):
    with caplog.at_level(logging.WARNING, "seriatim"):
        fresh.api("keys/pause", {"subscription": "shipping", "key": "order-5", "reason": "a test"})
        fresh.api("keys/resume", {"subscription": "shipping", "key": "order-6"})
    logged = [record for record in caplog.records if hasattr(record, "operation")]
    assert [(one.who, one.operation, one.outcome[:7]) for one in logged] == [
        ("ops", "keys/pause", "done"),
        ("ops", "keys/resume", "refused"),
    ]
    kept = fresh.api("changes").json
    assert [(one["who"], one["operation"]) for one in kept] == [("ops", "keys/resume"), ("ops", "keys/pause")]
    assert kept[1]["arguments"] == {"subscription": "shipping", "key": "order-5", "reason": "a test"}


# -- who may ----------------------------------------------------------------------------------------------------------


def test_a_viewer_gets_403_on_every_changing_operation_of_the_description(console):
    changing = [path for method, path in operations(console) if method != "get"]
    assert len(changing) > 25
    for path in changing:
        answer = console.ask(path, {}, token=VIEWER)
        assert (path, answer.status, answer.json["error"]) == (path, 403, "PermissionDenied")


def test_a_viewer_may_check_the_store_and_all_who_ask_meanwhile_share_one_check(fresh, monkeypatch):
    begun, go_on = threading.Semaphore(0), threading.Event()
    check = fresh.engine.check

    async def slow_check() -> StoreCheck:
        begun.release()
        await asyncio.to_thread(go_on.wait, 30)
        return await check()

    monkeypatch.setattr(fresh.engine, "check", slow_check)
    with ThreadPoolExecutor() as pool:
        answers = [pool.submit(fresh.api, "store/check", token=token) for token in (VIEWER, VIEWER, BLIND)]
        assert begun.acquire(timeout=30)
        assert fresh.api("store/health", token=VIEWER).status == 200, "other looks go on"
        go_on.set()
        assert [answer.result().json["messages"] for answer in answers] == [49, 49, 49]
    assert not begun.acquire(blocking=False), "one check was enough"


def test_every_operation_is_refused_without_a_token_with_a_wrong_one_and_without_a_role(console):
    for number, (method, path) in enumerate(operations(console)):
        body: Any = None if method == "get" else {}
        assert (path, console.ask(path, body, token=None).status) == (path, 401)
        assert (path, console.ask(path, body, token=PUBLISHER).status) == (path, 403)
        if number < LOGINS_AT_ONCE // 2:
            assert (path, console.ask(path, body, token="guessed").status) == (path, 401)


def test_a_foreign_host_is_refused_everywhere(console):
    for path in ("/", "/login", "/static/console.js", "/api/v1/overview"):
        assert console.ask(path, headers={"Host": "evil.example"}).status == 421
    assert console.api("overview", headers={"Host": "localhost:1"}).status == 200


def test_headers_that_are_malformed_are_refused(console):
    assert console.api("overview", headers={"Host": "[::1"}).status == 400
    assert console.api("keys/retry", {}, headers={"Origin": "http://[::1"}).status == 400


def test_a_change_from_another_origin_is_refused(console):
    asked = {"subscription": "shipping", "key": "order-3"}
    for origin in ("http://evil.example", "null", console.address.replace("http:", "https:"), "http://127.0.0.1:1"):
        assert console.api("keys/retry", asked, headers={"Origin": origin}).status == 403


def test_a_session_is_a_cookie_that_scripts_and_other_sites_cannot_use(fresh):
    answer = fresh.ask("/login?token=guessed", token=None)
    assert (answer.status, "Set-Cookie" in answer.headers) == (401, False)
    answer = fresh.ask("/login?token=operator-token", token=None)
    assert (answer.status, answer.headers["Location"]) == (303, "/")
    cookie = answer.headers["Set-Cookie"]
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= {part.strip() for part in cookie.split(";")}
    session = {"Cookie": cookie.partition(";")[0]}
    assert fresh.ask("/", token=None, headers=session).status == 200
    asked = {"subscription": "shipping", "key": "order-3"}
    assert fresh.api("keys/retry", asked, token=None, headers=session).status == 403  # no origin
    assert fresh.api("keys/retry", asked, token=None, headers={**session, "Origin": fresh.address}).status == 200
    assert fresh.ask("/logout", {}, token=None, headers={**session, "Origin": fresh.address}).status == 303
    assert fresh.api("overview", token=None, headers=session).status == 401


def test_a_login_leads_nowhere_else(console):
    for to in ("//evil.example/", "https://evil.example/", "/\\evil.example"):
        assert console.ask(f"/login?token=operator-token&to={quote(to)}", token=None).headers["Location"] == "/"
    assert (
        console.ask("/topics", token=None, headers={"Accept": "text/html"}).headers["Location"] == "/login?to=%2Ftopics"
    )


def test_answers_carry_the_headers_that_keep_browsers_safe(console):
    for path in ("/", "/static/console.js", "/api/v1/overview", "/nowhere"):
        assert {name: console.ask(path).headers[name] for name in HEADERS} == HEADERS


def test_pages_name_no_outside_address(console):
    pages = ("/", "/topics", "/topic?name=orders", "/subscription?name=shipping", "/dead-letters?subscription=shipping")
    for path in (*pages, "/login", "/static/console.js", "/static/console.css"):
        answer = console.ask(path)
        assert answer.status == 200
        assert not re.findall(r"https?:|src=.//|href=.//|@import|url\(", answer.text)


def test_names_and_errors_are_shown_as_text(fresh):
    nasty = "<script>alert(1)</script>"
    fresh.run(lambda engine: engine.publish("orders", [Outgoing(nasty, nasty.encode())]))
    fresh.run(lambda engine: engine.pause_key("shipping", nasty, nasty))
    for path in ("/subscription?name=shipping", "/topic?name=orders"):
        assert nasty not in fresh.ask(path).text
    assert nasty not in fresh.ask("/key", subscription="shipping", key=nasty).text


def test_too_much_is_refused(fresh):
    assert fresh.api("keys/retry", {}, headers={"Content-Length": str(MAX_BODY_BYTES + 1)}).status == 413
    statuses = [fresh.api("overview", token=f"guess-{i}").status for i in range(LOGINS_AT_ONCE + 3)]
    assert statuses[0] == 401
    assert statuses[-1] == 429
    assert fresh.api("overview").status == 200  # who has a token is not shut out by others who guess


def test_other_addresses_than_loopback_need_tls_and_tokens(tmp_path):
    async def open_console() -> None:
        ConsoleServer(None, "0.0.0.0", access=Access.load(tokens_file(tmp_path)))

    with pytest.raises(InvalidArgument, match="can be reached by others"):
        asyncio.run(open_console())


def test_a_console_without_the_store_says_who_owns_it(tmp_path):
    async def scenario() -> tuple[int, str]:
        server = ConsoleServer(None, port=0, access=Access.load(tokens_file(tmp_path)))
        server.console.find_owner = lambda: "https://other.example:8086"
        await server.start()
        one = Running(None, server, asyncio.get_running_loop())  # type: ignore[arg-type]
        answer = await asyncio.to_thread(one.api, "overview")
        await server.stop()
        return answer.status, answer.json["message"]

    status, message = asyncio.run(scenario())
    assert status == 503
    assert message == "this process stands by and does not own the store; its owner is at https://other.example:8086"


# -- where it runs ----------------------------------------------------------------------------------------------------


def test_it_is_mounted_in_an_app_of_ones_own(tmp_path):
    async def scenario() -> None:
        engine = await Engine.open("memory://")
        await orders(engine)
        app = FastAPI()
        console = mount(app, engine, Access.load(tokens_file(tmp_path)), hosts=frozenset({"testserver"}))
        bearer = {"Authorization": "Bearer operator-token"}

        async def get(path: str, headers: dict[str, str]) -> tuple[dict[str, str], str]:
            sent = [(name.lower().encode(), text.encode()) for name, text in {"Host": "testserver", **headers}.items()]
            scope = {"type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b""}
            scope |= {
                "headers": sent,
                "scheme": "http",
                "server": ("testserver", 80),
                "root_path": "",
                "http_version": "1.1",
            }
            answer: list[Any] = []
            await app(scope, _nothing, _collect(answer))
            got = {name.decode(): text.decode() for name, text in answer[0]["headers"]}
            return got, b"".join(part.get("body", b"") for part in answer[1:]).decode()

        assert json.loads((await get("/seriatim/api/v1/overview", bearer))[1])["topics"] == 1
        assert 'href="/seriatim/subscription?name=shipping"' in (await get("/seriatim/", bearer))[1]
        turned_away, _ = await get("/seriatim/topics", {"Accept": "text/html"})
        assert turned_away["location"] == "/seriatim/login?to=%2Fseriatim%2Ftopics"
        await console.close()
        await engine.close()

    asyncio.run(scenario())


async def _nothing() -> Any:
    return {"type": "http.request", "body": b""}


def _collect(messages: list[Any]) -> Any:
    async def send(message: Any) -> None:
        messages.append(message)

    return send


def test_it_works_through_the_socket_of_the_owner(tmp_path):
    url = f"sqlite:///{tmp_path / 'a.db'}"

    async def look() -> list[str | None]:
        broker = await open_broker(url)
        server = ConsoleServer(broker, port=0, access=Access.load(tokens_file(tmp_path)))
        await server.start()
        one = Running(None, server, asyncio.get_running_loop())  # type: ignore[arg-type]
        keys = (await asyncio.to_thread(one.api, "keys/list", subscription="shipping")).json
        assert (await asyncio.to_thread(one.ask, "/key", subscription="shipping", key="order-3")).status == 200
        assert (await asyncio.to_thread(one.ask, "/")).status == 200
        await server.stop()
        await broker.close()
        return [key["key"] for key in keys]

    with running(tmp_path, url=url) as owner:
        assert asyncio.run(look()) == [key["key"] for key in owner.api("keys/list", subscription="shipping").json]


def test_what_goes_wrong_is_a_page_for_people_and_data_for_programs(console):
    answer = console.ask("/subscription?name=nobody", headers={"Accept": "text/html"})
    assert (answer.status, "subscription &#39;nobody&#39; does not exist" in answer.text) == (404, True)
    assert console.ask("/subscription?name=nobody").json["error"] == "NotFound"
    assert console.ask("/subscription?name=shipping&page=x", headers={"Accept": "text/html"}).status == 422
