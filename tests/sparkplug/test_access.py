"""TLS, users and passwords at a real broker: who is let in, whom the host trusts, and what it says when it is refused."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import ssl
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import aiomqtt
import pytest
from click.testing import CliRunner
from cryptography import x509
from cryptography.hazmat.primitives import serialization

from seriatim.cli.main import cli
from seriatim.engine.connect import open_broker
from seriatim.errors import InvalidArgument
from seriatim.sparkplug.host import Host, HostOptions
from seriatim.sparkplug.mqtt_address import MqttAddress, MqttTrust
from tests.certificates import Certificate, new_certificate
from tests.mosquitto import Mosquitto, password_line
from tests.sparkplug.plant import EdgeNode, run_bounded, stored_in, until
from tests.sparkplug.test_how_to import HOW_TO

USER, PASSWORD = "plant", "open sesame"
PASSWORDS = "allow_anonymous false\npassword_file {folder}/passwords"
TLS = "cafile {folder}/ca.pem\ncertfile {folder}/server.pem\nkeyfile {folder}/server.key"


@contextmanager
def broker_that_wants(folder: Path, *access: str, server: Certificate | None = None) -> Iterator[Mosquitto]:
    """A broker, and in ``folder`` the files that it and its clients need."""
    server, client = server or new_certificate(), new_certificate()
    files = {
        "passwords": password_line(USER, PASSWORD).encode(),
        "server.pem": server.certificate,
        "server.key": server.key,
        "ca.pem": client.certificate,
        "client.pem": client.certificate,
        "client.key": client.key,
    }
    for name, data in files.items():
        (folder / name).write_bytes(data)
    broker = Mosquitto(folder, "\n".join(access).format(folder=folder))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


@contextmanager
def command(store: str, *options: str, password: str = "") -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", "seriatim", "-vv", "sparkplug", "host", "--store", store, "--json", *options],
        env={**os.environ, "HOME": os.devnull, "SERIATIM_MQTT_PASSWORD": password},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def refused(store: str, *options: str, password: str = "") -> tuple[int, str]:
    """How a command ends that can't connect, and what it says last."""
    with command(store, *options, password=password) as process:
        _, errors = process.communicate(timeout=60)
    text = errors.decode()
    assert "Traceback" not in text
    assert not password or password not in text
    return process.returncode, text.splitlines()[-1]


def options_of_the_how_to(broker: Mosquitto, ca: Path) -> list[str]:
    """How the how-to connects to a broker with TLS and passwords, with a broker and a CA of ours in the place of its own."""
    shown = re.search(
        r"^seriatim sparkplug host (--mqtt mqtts://.+) --store sqlite:///plant.db$", HOW_TO.read_text(), re.M
    )
    assert shown is not None
    ours = {"historian@broker.plant.example": f"{USER}@127.0.0.1:{broker.port}", "plant-ca.pem": str(ca)}
    line = shown[1]
    for theirs, own in ours.items():
        assert theirs in line
        line = line.replace(theirs, own)
    return shlex.split(line)


def test_over_tls_with_a_user_whose_password_is_in_the_environment_as_the_how_to_says(tmp_path, store):
    with broker_that_wants(tmp_path, PASSWORDS, TLS) as broker:

        async def scenario() -> None:
            options = options_of_the_how_to(broker, tmp_path / "server.pem")
            with command(store, *options, password=PASSWORD) as process:
                context = ssl.create_default_context(cafile=tmp_path / "server.pem")
                async with aiomqtt.Client(
                    "127.0.0.1", broker.port, username=USER, password=PASSWORD, tls_context=context
                ) as client:
                    await client.subscribe("spBv1.0/STATE/#", qos=1)
                    await anext(aiter(client.messages))
                    await EdgeNode(client).birth(0)
                    await until(lambda: len(stored_in(store)) == 1)
                process.send_signal(signal.SIGTERM)
                output, errors = await asyncio.to_thread(process.communicate)
                assert json.loads(output)["stored"] == 1
                assert PASSWORD.encode() not in errors

        run_bounded(scenario())


@pytest.mark.parametrize(
    ("user", "password", "said"),
    [
        (USER, "open barley", "refuses user 'plant': check user and password"),
        ("nobody", PASSWORD, "refuses user 'nobody': check user and password"),
        ("", "", "refuses anonymous connections: check user and password"),
    ],
)
def test_whoever_is_refused_at_the_first_connection_is_told_so_and_the_command_ends(
    tmp_path, store, user, password, said
):
    with broker_that_wants(tmp_path, PASSWORDS) as broker:
        url = f"mqtt://{f'{user}@' if user else ''}127.0.0.1:{broker.port}"
        expected = f"error: the MQTT broker mqtt://127.0.0.1:{broker.port} {said}"
        assert refused(store, "--mqtt", url, password=password) == (1, expected)


def other_name() -> Certificate:
    return new_certificate(x509.DNSName("another.example"))


@pytest.mark.parametrize(
    ("certificate", "trusted", "why"),
    [
        (new_certificate, "client.pem", "self-signed certificate"),
        (other_name, "server.pem", "IP address mismatch, certificate is not valid for '127.0.0.1'"),
    ],
)
def test_a_broker_that_is_not_to_be_trusted_is_not_told_the_password(
    tmp_path, store, certificate: Callable[[], Certificate], trusted, why
):
    with broker_that_wants(tmp_path, PASSWORDS, TLS, server=certificate()) as broker:
        url = f"mqtts://{USER}@127.0.0.1:{broker.port}"
        status, said = refused(store, "--mqtt", url, "--mqtt-ca", str(tmp_path / trusted), password=PASSWORD)
    assert status == 1
    assert said.startswith(f"error: the certificate of the MQTT broker mqtts://127.0.0.1:{broker.port} is not tr")
    assert why in said


def test_a_broker_that_wants_a_certificate_gets_one(tmp_path, store):
    with broker_that_wants(tmp_path, "allow_anonymous true", TLS, "require_certificate true") as broker:
        trust = MqttTrust(tmp_path / "server.pem", tmp_path / "client.pem", tmp_path / "client.key")
        address = MqttAddress.parse(f"mqtts://127.0.0.1:{broker.port}")
        run_bounded(_connects(store, address, HostOptions(trust=trust)))


async def _connects(store: str, address: MqttAddress, options: HostOptions) -> None:
    owner = await open_broker(store)
    host = Host(owner, "telemetry", address, options)
    running = asyncio.create_task(host.run())
    try:
        await host.online.wait()
    finally:
        running.cancel()
        await asyncio.wait([running])
        await owner.close()


def test_a_broker_that_is_not_there_yet_is_waited_for(mosquitto, store):
    mosquitto.stop()

    async def scenario() -> None:
        options = HostOptions(reconnect_delay=0.05, reconnect_limit=0.1)
        connecting = asyncio.create_task(_connects(store, MqttAddress.parse(mosquitto.url), options))
        done, _ = await asyncio.wait([connecting], timeout=0.3)
        assert not done
        mosquitto.start()
        await connecting

    run_bounded(scenario())


def test_a_refusal_later_on_is_tried_again_because_somebody_may_be_changing_passwords(tmp_path, store, caplog):
    async def scenario(broker: Mosquitto) -> None:
        owner = await open_broker(store)
        address = MqttAddress.parse(f"mqtt://{USER}@127.0.0.1:{broker.port}", PASSWORD)
        host = Host(owner, "telemetry", address, HostOptions(reconnect_delay=0.02, reconnect_limit=0.05))
        running = asyncio.create_task(host.run())
        await host.online.wait()
        broker.stop()
        (tmp_path / "passwords").write_text(password_line(USER, "another"))
        broker.start()
        await until(lambda: "refuses user" in caplog.text)
        broker.stop()
        (tmp_path / "passwords").write_text(password_line(USER, PASSWORD))
        broker.start()
        await host.online.wait()
        running.cancel()
        await asyncio.wait([running])
        await owner.close()

    with broker_that_wants(tmp_path, PASSWORDS) as broker:
        run_bounded(scenario(broker))
    assert PASSWORD not in caplog.text


def test_files_that_can_not_be_used_are_refused_before_anything_begins(tmp_path):
    tls, plain = MqttAddress("h", 1, tls=True), MqttAddress("h", 1)
    server = new_certificate()
    (tmp_path / "server.pem").write_bytes(server.certificate)
    (tmp_path / "empty").write_bytes(b"")
    secret = serialization.load_pem_private_key(server.key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (tmp_path / "secret.key").write_bytes(secret)
    for address, trust, said in (
        (tls, MqttTrust(ca=tmp_path / "empty"), "can't be read as PEM"),
        (tls, MqttTrust(ca=tmp_path / "none"), "can't be read as PEM"),
        (tls, MqttTrust(key=tmp_path / "empty"), "needs the certificate"),
        (tls, MqttTrust(None, tmp_path / "server.pem", tmp_path / "empty"), "can't be read as PEM"),
        (tls, MqttTrust(None, tmp_path / "server.pem", tmp_path / "secret.key"), "is encrypted"),
        (plain, MqttTrust(ca=tmp_path / "server.pem"), "give the address of the broker as mqtts://"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            trust.for_address(address)
    assert MqttTrust().for_address(plain) is None


def test_a_password_is_told_to_nobody_without_a_user():
    assert MqttAddress.parse("mqtt://h", "secret").password is None
    assert MqttAddress.parse("mqtt://u@h", "secret").password == "secret"
    assert MqttAddress.parse("mqtt://u:own@h", "secret").password == "own"
    assert "own" not in str(MqttAddress.parse("mqtt://u:own@h"))


SECRETS = ("plantuser", "s3cret")
"""A user and a password that no part of any other text is."""


@pytest.mark.parametrize(
    "url",
    [
        "mqtt://[::1",
        "mqtt://plantuser:s3cret@[::1",
        "mqtt://plantuser:s3cret\u2100@h",
        "mqtt://plantuser:s3cret#x@h",
        "mqtt://plantuser:s3cret?x@h",
        "mqtt://plantuser:s3cret/x@h",
        "mqtt://plantuser:12#",
        "mqtt://plantuser:s3cret@h#x",
        "mqtt://plantuser:s3cret@h?x=y",
        "mqtt://plantuser:s3cret%ff@h",
        "mqtt://plantuser:s3cret\n@h",
        "mqtt://plantuser:s3cret@h:port",
        "mqtt://plantuser:s3cret@h:99999",
        "mqtt://plantuser:s3cret@h:0",
        "mqtt://plantuser:s3cret@",
        "http://plantuser:s3cret@h",
        "",
    ],
)
def test_an_address_that_is_none_is_refused_without_showing_user_or_password(url, tmp_path):
    with pytest.raises(InvalidArgument, match="%23") as refused:
        MqttAddress.parse(url)
    told = CliRunner().invoke(
        cli, ["sparkplug", "host", "--store", f"sqlite:///{tmp_path / 's.db'}", "--mqtt", url or "-"]
    )
    assert told.exit_code in (1, 2)
    shown = "".join(traceback.format_exception(refused.value)) + told.stderr
    assert not [secret for secret in SECRETS if secret in shown.replace(f"parse({url!r})", "")]


def test_what_is_percent_encoded_in_user_and_password_is_taken_as_it_is_meant():
    address = MqttAddress.parse("mqtt://a%40b:12%23x%2F%E2%84%80%3F@[::1]:1884/")
    assert (address.user, address.password, str(address)) == ("a@b", "12#x/\u2100?", "mqtt://[::1]:1884")
