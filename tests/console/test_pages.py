"""The console as operators use it, in a real browser: with nothing but the pages."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from seriatim import RetryPolicy
from seriatim.console import ConsoleServer, app
from seriatim.engine import overview, reported_status
from seriatim.engine.access_tokens import Access
from seriatim.engine.broker import Outgoing
from seriatim.engine.engine import Engine
from seriatim.engine.options import SubscriptionOptions
from seriatim.engine.reported_status import take_rebirth_requests
from tests.console import faults
from tests.console.browser import chromium, logged_in
from tests.console.consoles import OPERATOR, VIEWER, handle_all, running, tokens_file
from tests.console.test_statuses import telling

expect.set_options(timeout=30_000)  # however slow this machine is

pytestmark = pytest.mark.xdist_group("browser")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as one:
        yield one


def test_a_blocked_key_is_seen_understood_retried_and_watched_moving(browser, tmp_path):
    broken = {"order-3": "the printer is out of paper"}

    async def shop(engine: Engine) -> None:
        await engine.create_topic("orders")
        options = SubscriptionOptions(message_ordering=True, retry=RetryPolicy(min_backoff=3600, max_backoff=3600))
        await engine.create_subscription("orders", "shipping", options)
        await engine.publish("orders", [Outgoing(f"order-{i % 7}", b"%d" % i) for i in range(49)])
        await handle_all(engine, broken.get)  # type: ignore[arg-type]
        while len(await engine.list_keys("shipping")) > 1:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.01)

    with running(tmp_path, shop) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        expect(page.locator(".callout")).to_contain_text("1 key is blocked")
        page.locator(".callout").get_by_role("link", name="shipping").click()
        row = page.locator("#keys tbody tr")
        expect(row).to_have_count(1)
        expect(row).to_contain_text("the printer is out of paper")
        row.get_by_role("link").click()
        expect(page.locator("#why")).to_contain_text(
            re.compile(r"Waits for its retry until .*: the printer is out of paper, since .*when an operator retries")
        )
        expect(page.locator(".lane li.head")).to_have_text(re.compile("3\\s*delayed"))
        broken.clear()  # somebody refills it
        expect(page.locator("#connection")).to_have_text("● live")
        page.keyboard.press("r")
        expect(page.locator("#why")).to_contain_text("It has no messages")
        expect(page.locator(".timeline")).to_contain_text("failed")
        assert problems == []


def test_dead_letters_are_redriven_after_a_look_at_what_that_would_do(browser, tmp_path):
    with running(tmp_path) as console:
        console.run(lambda engine: engine.dead_letter("shipping", "order-5", "no such street"))
        console.run(handle_all)
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/dead-letters?subscription=shipping")
        groups = page.locator("#groups tbody tr")
        expect(groups).to_have_count(2)
        expect(groups.first).to_contain_text("card # was declined")
        groups.first.get_by_role("button", name="Redrive…").click()
        asked = page.get_by_role("dialog")
        expect(asked).to_contain_text("7 go back to their places")
        asked.get_by_role("button", name="Put 7 back in place").click()
        expect(page.locator("#toast")).to_have_text("7 redriven")
        expect(groups).to_have_count(1)
        groups.first.get_by_role("button", name="Redrive…").click()
        expect(asked).to_contain_text("1 can't go back: message # can't go back to its place")
        asked.get_by_role("button", name="Append all 1 at the end").click()
        expect(page.locator("#live")).to_contain_text("There are no dead letters")
        assert problems == []


def test_a_message_is_published_from_the_page_of_its_topic(browser, tmp_path):
    with running(tmp_path) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/topic?name=orders&key=order-new")
        page.get_by_text("Publish a message").click()
        page.locator("#publish").get_by_label("Key").fill("order-new")
        page.locator("#publish").get_by_label("Data").fill("by hand")
        page.keyboard.press("Enter")
        expect(page.locator("#toast")).to_have_text("Published message 49")
        expect(page.locator("#live tbody tr")).to_contain_text("by hand")
        assert problems == []


def test_selected_dead_letters_are_discarded_after_a_question(browser, tmp_path):
    with running(tmp_path) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/dead-letters?subscription=shipping")
        page.get_by_label("Select message 8").check()
        page.get_by_role("button", name="Discard selected…").click()
        page.get_by_role("dialog").get_by_role("button", name="Discard").click()
        expect(page.locator("#letters tbody tr")).to_have_count(6)
        expect(page.get_by_label("Select message 8")).to_have_count(0)
        assert problems == []


def test_one_key_is_found_among_100_000(browser, tmp_path):
    async def many(engine: Engine) -> None:
        await engine.create_topic("orders")
        await engine.create_subscription("orders", "shipping", SubscriptionOptions(message_ordering=True))
        for first in range(0, 100_000, 10_000):
            await engine.publish("orders", [Outgoing(f"order-{i:06}", b"x") for i in range(first, first + 10_000)])

    with running(tmp_path, many) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/subscription?name=shipping")
        page.keyboard.press("/")
        page.keyboard.type("-09876")
        page.keyboard.press("Enter")
        rows = page.locator("#keys tbody tr")
        expect(rows).to_have_count(10)
        rows.filter(has_text="order-098765").get_by_role("link").click()
        expect(page.locator("#why")).to_contain_text("the subscription has no consumer")
        said = console.run(lambda engine: engine.explain("shipping", "order-098765")).sentence
        expect(page.locator("#why strong")).to_have_text(f"{said[0].upper()}{said[1:]}.")
        assert problems == []


def test_a_viewer_sees_why_and_has_no_buttons(browser, tmp_path):
    with running(tmp_path) as console:
        page, _ = logged_in(browser, console.address, VIEWER)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-2")
        expect(page.locator("#why")).to_contain_text("Paused: the customer complained")
        expect(page.locator("main button")).to_have_count(0)
        expect(page.locator("main")).to_contain_text("You may look, not change")
        expect(page.locator("main")).not_to_contain_text("data of 2")


def test_pausing_asks_for_a_reason_and_every_page_works_by_keyboard_in_dark_and_light(browser, tmp_path):
    with running(tmp_path) as console:
        page, problems = logged_in(browser, console.address, OPERATOR, color_scheme="dark")
        dark = _background(page)
        page.get_by_role("button", name="Switch between dark and light").press("Enter")
        assert _background(page) != dark
        page.goto(f"{console.address}/key?subscription=shipping&key=order-4")
        page.get_by_role("button", name="Pause").focus()
        page.keyboard.press("Enter")
        page.get_by_label("Reason").fill("waiting for the customer")
        page.keyboard.press("Tab")
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        expect(page.locator("#why")).to_contain_text("Paused: waiting for the customer")
        expect(page.locator("#why").get_by_role("link", name="Changes")).to_be_visible()
        page.keyboard.press("c")
        expect(page.locator("main table")).to_contain_text("keys/pause")
        page.get_by_role("link", name="order-4").click()
        expect(page.locator("#why")).to_contain_text("Paused: waiting for the customer")
        assert problems == []


def _background(page: Page) -> str:
    return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))


OTHERS = ("pipelines", "sparkplug")
"""Pages of what other programs leave in the store."""
CONTRAST = (Path(__file__).parent / "contrast.js").read_text(encoding="utf-8")


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_text_has_contrast_and_controls_have_labels(browser, tmp_path, scheme):
    with running(tmp_path) as console:
        page, _ = logged_in(browser, console.address, OPERATOR, color_scheme=scheme)
        console.run(telling)
        asked = ("", "topics", "topic?name=orders", "subscription?name=shipping", "changes", "login", *OTHERS)
        for path in (*asked, "key?subscription=shipping&key=order-3", "dead-letters?subscription=shipping"):
            page.goto(f"{console.address}/{path}")
            assert (path, page.evaluate(CONTRAST)) == (path, [])


def test_five_prepared_faults_are_found_with_nothing_but_the_pages(browser, tmp_path):
    """Which key is stuck, since when, why, and what to do about it: three clicks from the overview, and well under a minute."""
    with running(tmp_path, faults.prepare) as console:
        page, problems = logged_in(browser, console.address, VIEWER)
        for fault, sentence in faults.FAULTS.items():
            begun = time.monotonic()
            page.get_by_role("link", name="Overview").first.click()
            page.get_by_role("link", name=fault).first.click()
            row = page.locator("#keys tbody tr").filter(has_text="order-4")
            expect(row.locator(".why")).not_to_be_empty()
            row.get_by_role("link").click()
            expect(page.locator("#why")).to_contain_text(re.compile(sentence))
            expect(page.locator(".lane li.head")).to_contain_text("4")
            assert time.monotonic() - begun < 60
        assert problems == []


def test_what_was_decided_about_one_message_does_not_hit_the_next(browser, tmp_path):
    """Whoever reads the question takes a while; the message may have been settled since."""
    with running(tmp_path) as console:
        page, _ = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-4")
        for button, head, after in (("Skip", 4, 11), ("Dead-letter", 11, 18), ("Dead-letter all", 18, 25)):
            page.get_by_role("button", name=f"{button} {f'message {head}' if head < 18 else '5'}").click()
            console.run(lambda engine: engine.skip("shipping", "order-4"))
            page.locator("#ask-choices button").click()
            expect(page.locator("#toast")).to_contain_text(f"stands at message {after} now, no longer at {head}")
        expect(page.locator(".lane li.head")).to_contain_text("25")
        assert console.run(lambda engine: engine.peek("shipping", "order-4"))[0].id == "25"


def test_enter_in_the_reason_says_yes(browser, tmp_path):
    with running(tmp_path) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-4")
        page.get_by_role("button", name="Pause").click()
        page.get_by_label("Reason").fill("stock-taking")
        page.keyboard.press("Enter")
        expect(page.locator("#why")).to_contain_text("Paused: stock-taking")
        page.get_by_role("button", name="Skip").click()
        page.get_by_role("button", name="Cancel").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert console.run(lambda engine: engine.peek("shipping", "order-4"))[0].id == "4", "it was not skipped"
        assert problems == []


def test_more_tabs_than_a_browser_has_connections_are_live_and_work(browser, tmp_path):
    with running(tmp_path) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        tabs = [page, *(page.context.new_page() for _ in range(7))]
        for tab in tabs[1:]:
            tab.goto(f"{console.address}/key?subscription=shipping&key=order-2")
        for tab in tabs:
            expect(tab.locator("#connection")).to_have_text("● live")
        tabs[-1].get_by_role("button", name="Resume").click()
        for tab in tabs[1:]:
            expect(tab.locator("#why")).to_contain_text("the subscription has no consumer")
        page.close()  # it listened for all; now another does
        console.run(lambda engine: engine.pause_key("shipping", "order-2", "once more"))
        for tab in tabs[1:]:
            expect(tab.locator("#why")).to_contain_text("Paused: once more")
        assert problems == []


def test_an_open_page_is_live_again_after_it_was_refused(browser, tmp_path, monkeypatch):
    with running(tmp_path) as console:
        monkeypatch.setattr(app, "MAX_PAGES_OF_ONE", 0)
        page, _ = logged_in(browser, console.address, OPERATOR)
        expect(page.locator("#connection")).to_contain_text("connection lost")
        monkeypatch.setattr(app, "MAX_PAGES_OF_ONE", 25)
        expect(page.locator("#connection")).to_have_text("● live")


def test_an_open_page_leads_to_the_login_and_back_when_the_console_was_started_anew(browser, tmp_path):
    with running(tmp_path) as console:
        page, _ = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-2")
        expect(page.locator("#connection")).to_have_text("● live")

        async def start_anew(engine: Engine) -> ConsoleServer:
            await console.server.stop()
            server = ConsoleServer(engine, port=console.server.port, access=Access.load(tokens_file(tmp_path)))
            await server.start()
            return server

        second = console.run(start_anew)
        page.get_by_label("Token").fill(OPERATOR)
        page.keyboard.press("Enter")
        expect(page.locator("#why")).to_contain_text("Paused: the customer complained")
        console.run(lambda _: second.stop())


def test_a_consumer_that_hangs_and_dead_letters_are_told_of_on_top(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(overview, "SLOW_S", 0.0)

    async def hanging(engine: Engine) -> None:
        await engine.create_topic("orders")
        options = SubscriptionOptions(message_ordering=True, retry=RetryPolicy(max_attempts=1), ack_deadline=600)
        for name in ("shipping", "mail"):
            await engine.create_subscription("orders", name, options)
        await engine.publish("orders", [Outgoing("order-1", b"the poison")])
        faults.attach(engine, "shipping", stuck="order-1")
        await engine.dead_letter("mail", "order-1", "no such street")

    with running(tmp_path, hanging) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        expect(page.locator(".callout")).to_contain_text("No key is blocked. 1 message is waiting or being handled.")
        expect(page.locator(".callout")).to_contain_text("more than a minute: shipping. With dead letters: mail.")
        expect(page.locator(".tile").filter(has_text="Not done yet").locator("strong")).to_have_text("1")
        page.get_by_role("link", name="shipping").first.click()
        expect(page.locator(".callout.warn")).to_contain_text("No key is blocked, but a message has waited for")
        page.locator("#keys").get_by_role("link").click()
        expect(page.locator("#why")).to_contain_text(
            re.compile("lease ends in .* unless .*If the consumer hangs, restart it")
        )
        page.goto(f"{console.address}/subscription?name=mail")
        page.get_by_role("link", name="see why").click()
        page.locator("#letters").get_by_role("link", name="0", exact=True).click()
        expect(page.locator("#live tbody tr")).to_contain_text("the poison")
        assert problems == []


def test_a_key_that_goes_on_failing_says_since_when_and_how_often(browser, tmp_path):
    """The last failure is always recent, however long it has been going on."""

    async def failing(engine: Engine) -> None:
        await engine.create_topic("orders")
        options = SubscriptionOptions(message_ordering=True, retry=RetryPolicy(min_backoff=3600, max_backoff=3600))
        await engine.create_subscription("orders", "shipping", options)
        await engine.publish("orders", [Outgoing("order-1", b"x")])
        await handle_all(engine, lambda _: "out of paper")

    with running(tmp_path, failing) as console:
        page, _ = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-1")
        expect(page.locator("#why")).to_contain_text(
            re.compile(r"Message 0 was published .* ago and has failed once\.")
        )
        page.get_by_role("button", name="Retry now").click()
        expect(page.locator("#toast")).to_have_text("Message 0 is due now. What comes of it shows here.")
        expect(page.locator("#why")).to_contain_text("has failed 2 times.")
        expect(page.locator("#why")).to_contain_text(re.compile(r"The last attempt failed .* ago, and it continues in"))
        expect(page.locator(".timeline")).to_contain_text("due again")
        page.goto(f"{console.address}/subscription?name=shipping")
        expect(page.locator(".callout")).to_have_text("1 key is blocked.")
        expect(page.locator("#live")).to_contain_text("after 1 h 0 min, without end")
        expect(page.locator("#live")).not_to_contain_text("When attempts are used up")
        page.goto(f"{console.address}/?search=mail")
        page.get_by_role("link", name="The subscriptions with blocked keys are listed first").click()
        expect(page.locator(".callout").get_by_role("link", name="shipping")).to_be_visible()


def test_what_is_paused_as_a_whole_or_has_no_consumer_is_said_before_that_no_key_is_blocked(browser, tmp_path):
    async def standing(engine: Engine) -> None:
        await engine.create_topic("orders")
        for name in ("shipping", "mail"):
            await engine.create_subscription("orders", name, SubscriptionOptions(message_ordering=True))
        await engine.pause("shipping")
        await engine.publish("orders", [Outgoing("order-1", b"x")])

    with running(tmp_path, standing) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        expect(page.locator(".callout")).to_have_text(
            re.compile(
                r"^\s*Paused as a whole, with messages waiting: shipping\.\s+Nobody consumes, although messages wait: mail\."
                r"\s+No single key is blocked\. 2 messages are waiting or being handled\.\s*$"
            )
        )
        page.goto(f"{console.address}/subscription?name=shipping")
        page.locator(".callout").get_by_role("link", name="Changes").click()
        expect(page.locator("main")).to_contain_text("Nothing yet.")
        page.get_by_role("button", name="Keyboard shortcuts").click()
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
        expect(page.get_by_role("dialog")).to_have_count(0)
        assert problems == []


def test_a_key_leads_to_its_dead_letters_and_back(browser, tmp_path):
    with running(tmp_path) as console:
        console.run(lambda engine: engine.dead_letter("shipping", "order-5", "no such street"))
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/key?subscription=shipping&key=order-5")
        page.get_by_role("link", name="Put dead letters back or discard them").click()
        expect(page.locator("#live")).to_contain_text("Redrive puts messages back, to be delivered again")
        page.get_by_role("link", name="order-5").first.click()
        expect(page.locator(".lane")).to_contain_text("dead-lettered")
        assert problems == []


def test_pages_fit_a_narrow_window_and_keys_are_shown_as_they_are(browser, tmp_path):
    async def spaced(engine: Engine) -> None:
        await engine.create_topic("orders")
        await engine.create_subscription("orders", "shipping", SubscriptionOptions(message_ordering=True))
        await engine.publish("orders", [Outgoing(key, b"x") for key in ("a b", "a  b")])
        await engine.dead_letter("shipping", "a b")

    with running(tmp_path, spaced) as console:
        page, _ = logged_in(browser, console.address, OPERATOR, viewport={"width": 375, "height": 700})
        console.run(telling)
        asked = ("", "topics", "topic?name=orders", "changes", "key?subscription=shipping&key=a%20b", *OTHERS)
        for path in (*asked, "dead-letters?subscription=shipping", "subscription?name=shipping"):
            page.goto(f"{console.address}/{path}")
            assert (path, page.evaluate("document.documentElement.scrollWidth")) == (path, 375)
        assert page.locator("#keys code").inner_text() == "a  b"


def test_a_pipeline_is_looked_at_and_a_rebirth_is_requested_by_its_button(browser, tmp_path, monkeypatch):
    monkeypatch.setattr(reported_status, "FRESH_S", 3600.0)  # a slow machine makes no host old
    with running(tmp_path, telling) as console:
        page, problems = logged_in(browser, console.address, OPERATOR)
        page.get_by_role("link", name="Pipelines").first.click()
        expect(page.locator(".callout")).to_contain_text("1 message never came. 4 rows wait")
        expect(page.get_by_role("img", name="Batches of all keys, the oldest first")).to_be_visible()
        page.get_by_role("link", name="Sparkplug").first.click()
        page.get_by_role("button", name="Request a rebirth").click()
        expect(page.locator("#toast")).to_have_text("Done: Request a rebirth")
        assert console.run(lambda engine: take_rebirth_requests(engine, "second")) == ["plant/press-4"]
        assert problems == []


def test_the_focus_stays_where_it_is_when_rows_move(browser, tmp_path):
    with running(tmp_path) as console:
        page, _ = logged_in(browser, console.address, OPERATOR)
        page.goto(f"{console.address}/subscription?name=shipping")
        page.locator("#keys").get_by_role("link", name="order-5").focus()
        console.run(lambda engine: engine.pause_key("shipping", "order-6"))
        expect(page.locator("#keys tbody tr").filter(has_text="order-6")).to_contain_text("paused")
        expect(page.locator("#keys").get_by_role("link", name="order-5")).to_be_focused()
