"""Operators' commands on every kind of address: the store's file, PostgreSQL, the Pub/Sub server, and the admin API itself."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from tests import postgres
from tests.certificates import new_certificate
from tests.ports import free_port

TOKEN = "everything"
PATIENCE_S = 60


class Shop:
    """Files that servers and commands need, and ways to start them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = new_certificate()
        self.certificate, self.key, self.tokens = folder / "cert.pem", folder / "key.pem", folder / "tokens.toml"
        self.certificate.write_bytes(made.certificate)
        self.key.write_bytes(made.key)
        self.tokens.write_text(f'[operator]\ntoken = "{TOKEN}"\nadmin = true\n')
        self.tokens.chmod(0o600)
        self.trust = {"SERIATIM_CONSOLE_TOKEN": TOKEN, "SERIATIM_CONSOLE_CA": str(self.certificate)}

    @contextmanager
    def serving(self, store: str, *options: str, tls: bool = True) -> Iterator[subprocess.Popen[str]]:
        secured = ["--tls-cert", str(self.certificate), "--tls-key", str(self.key)] if tls else []
        command = [sys.executable, "-m", "seriatim", "serve", "--store", store, "--port", "0", "--json", *secured]
        command += ["--tokens", str(self.tokens), *options]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=self.folder) as process:
            try:
                yield process
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(PATIENCE_S)

    def run(self, store: str, *words: str, **environment: str) -> tuple[int, str]:
        done = CliRunner().invoke(cli, [*words, "--store", store], env={**self.trust, **environment})
        return done.exit_code, done.stdout if done.exit_code == 0 else done.stderr

    def json(self, store: str, *words: str) -> Any:
        status, text = self.run(store, *words, "--json")
        assert status == 0, text
        return json.loads(text)


def ready(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    found: dict[str, Any] = json.loads(process.stdout.readline())
    return found


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logger_as_it_was: None) -> Shop:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    return Shop(tmp_path)


PREPARATION = (
    ("topics", "create", "orders"),
    ("subscriptions", "create", "orders", "shipping"),
    ("messages", "publish", "orders", "first", "--key", "order-1"),
    ("messages", "publish", "orders", "second", "--key", "order-1"),
    ("messages", "publish", "orders", "third", "--key", "order-2"),
    ("keys", "pause", "shipping", "order-1", "--reason", "the customer asked"),
    ("keys", "dead-letter", "shipping", "order-2", "--reason", "no such street"),
)
LOOKS = (
    ("topics", "list"),
    ("subscriptions", "list"),
    ("subscriptions", "show", "shipping"),
    ("keys", "list", "shipping"),
    ("keys", "why", "shipping", "order-1"),
    ("keys", "peek", "shipping", "order-1"),
    ("messages", "read", "orders", "--last", "1"),
    ("dead-letters", "list", "shipping"),
    ("store", "stats"),
    ("store", "check"),
)


def test_the_same_commands_give_the_same_json_on_four_kinds_of_address(shop):
    database, file = postgres.server().new_url(), f"sqlite:///{shop.folder / 'orders.db'}"
    with (
        shop.serving(database, "--console", "127.0.0.1:0") as on_postgres,
        shop.serving(file, "--console", "127.0.0.1:0") as on_sqlite,
    ):
        served = ready(on_postgres)
        ready(on_sqlite)
        pubsub = f"pubsub://127.0.0.1:{served['port']}/seriatim?token={TOKEN}&ca={shop.certificate}"
        api = served["console"]
        assert api.startswith("https://")
        prepared = [
            without_times([shop.json(address, *words) for words in PREPARATION]) for address in (file, database)
        ]
        assert prepared[0] == prepared[1]
        looks = {
            address: without_times([shop.json(address, *words) for words in LOOKS])
            for address in (file, database, pubsub, api)
        }
        assert looks[file][3][0]["state"] == "paused"
        for address in (database, pubsub, api):
            assert looks[address] == looks[file], address
        changes = [
            [shop.json(address, "keys", verb, "shipping", "order-9") for verb in ("pause", "resume")]
            for address in (file, database, pubsub, api)
        ]
        assert changes == [changes[0]] * 4
        for address in (file, database, pubsub, api):
            found = {row["check"]: row for row in shop.json(address, "store", "doctor")}
            assert found["options"]["found"] == "valid for every topic and subscription", address
            assert [row for row in found.values() if row["status"] == "fail"] == []
        assert found["commits"]["found"].endswith("0 failed")
        assert "postgresql" in found["owner"]["found"]


def test_what_the_admin_api_does_not_offer_is_refused_with_what_can_be_used(shop):
    with shop.serving(f"sqlite:///{shop.folder / 'orders.db'}", "--console", "127.0.0.1:0") as served:
        api = ready(served)["console"]
        for words in PREPARATION[:2]:
            shop.json(api, *words)
        status, said = shop.run(api, "messages", "pull", "shipping")
        refused = shop.run(api, "sparkplug", "nodes", "--topic", "orders")
    assert refused[0] == 1
    assert "the admin API has no positions of writers: run this where the store is" in refused[1]
    assert status == 1
    assert (
        "can't deliver messages: use the server's pubsub://HOST:PORT/PROJECT, or the store itself; 'keys peek'" in said
    )


def test_a_server_without_an_admin_api_is_diagnosed_as_far_as_it_tells(shop):
    with shop.serving("memory://", tls=False) as process:
        pubsub = f"pubsub://127.0.0.1:{ready(process)['port']}/demo?token={TOKEN}"
        found = {row["check"]: row["status"] for row in shop.json(pubsub, "store", "doctor")}
        assert (found["store"], found["health"]) == ("ok", "warn")
        status, said = shop.run(pubsub, "store", "check")
        assert (status, "serve --console" in said) == (1, True)


def without_times(answers: list[Any]) -> Any:
    """Answers without what differs from one moment to the next."""
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[.\d]*(Z| UTC)", "TIME", json.dumps(answers))
    return json.loads(re.sub(r'("(?:head_age|oldest_age|age)": )[\d.e-]+', r"\1 0", text))


def test_a_token_is_not_sent_to_an_address_that_was_only_advertised_unless_tls_proves_it(shop):
    database = postgres.server().new_url()
    with shop.serving(database, "--console", "127.0.0.1:0", tls=False) as process:
        ready(process)
        status, said = shop.run(database, "keys", "list", "shipping")
        assert (status, "without TLS to prove it: your token was not sent there" in said) == (1, True)
    with shop.serving(database, "--console", "127.0.0.1:0") as process:
        ready(process)
        status, said = shop.run(database, "keys", "list", "shipping", SERIATIM_CONSOLE_CA="")
        assert (status, "did not prove who it is, and your token was not sent" in said) == (1, True)
        assert "subscription 'shipping' does not exist" in shop.run(database, "keys", "list", "shipping")[1]


def test_commands_are_told_how_to_reach_an_owner_without_an_admin_api(shop):
    database = postgres.server().new_url()
    with shop.serving(database, tls=False) as process:
        served = ready(process)
        status, said = shop.run(database, "keys", "list", "shipping")
        assert (status, "let 'seriatim serve --console' own the store" in said) == (1, True)
        pubsub = f"pubsub://127.0.0.1:{served['port']}/demo?token={TOKEN}"
        assert shop.run(pubsub, "topics", "create", "orders")[0] == 0
        shop.run(pubsub, "messages", "publish", "orders", "first")
        (topic,) = shop.json(pubsub, "topics", "list")
        assert (topic["earliest"], topic["next_offset"]) == (None, None)  # the API does not tell
        for asked, cannot in (
            (("keys", "list", "shipping"), "can't list keys"),
            (("messages", "read", "orders"), "shows no messages"),
        ):
            status, said = shop.run(pubsub, *asked)
            assert (status, f"the Pub/Sub API {cannot}" in said, "serve --console" in said) == (1, True, True)


def test_a_server_that_is_not_there_is_told_of_at_once(shop):
    port, began = free_port(), time.monotonic()
    status, said = shop.run(f"pubsub://127.0.0.1:{port}/demo", "topics", "list")
    assert (status, f"no server answers at 127.0.0.1:{port}" in said) == (1, True)
    assert time.monotonic() - began < 30  # gRPC itself would try for a minute


def test_a_server_with_tls_is_told_of_at_once_where_the_address_has_none(shop):
    with shop.serving("memory://", tls=True) as process:
        port, began = ready(process)["port"], time.monotonic()
        status, said = shop.run(f"pubsub://127.0.0.1:{port}/demo", "topics", "list")
    assert (status, f"no server answers at 127.0.0.1:{port} (" in said, "tls and ca" in said) == (1, True, True)
    assert time.monotonic() - began < 30


def test_a_standby_answers_503_and_names_the_owner_until_it_takes_over(shop):
    database, port = postgres.server().new_url(), free_port()

    def look() -> tuple[int, Any]:
        asked = urllib.request.Request(
            f"http://127.0.0.1:{port}/api/v1/overview", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        try:
            with urllib.request.urlopen(asked, timeout=10) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)
        except OSError:
            return 0, None

    with shop.serving(database, "--console", "127.0.0.1:0", tls=False) as owner:
        address = ready(owner)["console"]
        with shop.serving(database, "--standby", "--console", f"127.0.0.1:{port}", tls=False) as standby:
            until(lambda: look()[0] != 0)
            status, told = look()
            assert (status, told["error"]) == (503, "StoreBusy")
            assert told["message"].endswith(f"its owner is at {address}")
            owner.send_signal(signal.SIGKILL)
            ready(standby)
            assert look()[0] == 200


def test_commands_follow_a_takeover_without_being_told(shop):
    database, port = postgres.server().new_url(), free_port()
    pubsub = f"pubsub://127.0.0.1:{port}/seriatim?token={TOKEN}&ca={shop.certificate}"
    options = ("--console", "127.0.0.1:0", "--port", str(port))
    with shop.serving(database, *options) as owner:
        former = ready(owner)["console"]
        for words in PREPARATION:
            shop.json(database, *words)
        with shop.serving(database, "--standby", *options) as standby:
            owner.send_signal(signal.SIGKILL)
            assert ready(standby)["console"] != former
            for address in (database, pubsub):
                (key,) = shop.json(address, "keys", "list", "shipping")
                assert (key["key"], key["state"], key["depth"]) == ("order-1", "paused", 2), address
                shop.json(address, "keys", "pause", "shipping", "order-9")
                shop.json(address, "keys", "resume", "shipping", "order-9")


def until(holds: Any) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.1)
