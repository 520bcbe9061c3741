"""Debian's chromium, driven by Playwright: for the tests of the pages, and for the pictures in the docs."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from tests.debian import NotAvailable, find_program, with_dependencies
from tests.needs import lacking

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextmanager
def chromium() -> Iterator[Browser]:
    try:
        packages = ("chromium",) if shutil.which("chromium") else with_dependencies("chromium")
        found = find_program("chromium", packages, "usr/lib/chromium/chromium")
    except NotAvailable as error:
        lacking(str(error))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.path, args=FLAGS, env={**found.environment})
        yield browser
        browser.close()


def logged_in(browser: Browser, address: str, token: str, **options: Any) -> tuple[Page, list[str]]:
    """A page that is logged in, in a context of its own, and what its scripts or its content policy complained about."""
    page, problems = browser.new_context(**options).new_page(), list[str]()
    page.set_default_timeout(30_000)

    def note(said: ConsoleMessage) -> None:
        if said.type == "error":
            problems.append(said.text)

    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", note)
    page.goto(f"{address}/login?token={token}")
    return page, problems
