"""``seriatim sparkplug``: a host application and its edge nodes. What its commands share is here."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from seriatim.cli.common.command import configuration

if TYPE_CHECKING:
    from seriatim.sparkplug.mqtt_address import MqttAddress, MqttTrust

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

topic_option = click.option("--topic", default="telemetry", show_default=True, help="The topic with the messages.")
ledger_option = click.option(
    "--ledger", metavar="TOPIC", help="The topic for what was not released.  [default: TOPIC-ledger]"
)


def mqtt_options(command: Callable[..., None]) -> Callable[..., None]:
    """The MQTT broker, and the certificates on both sides."""
    for option in (
        click.option("--mqtt-key", type=_FILE, help="The key of the client certificate, if not in the same file."),
        click.option("--mqtt-cert", type=_FILE, help="The client certificate (PEM)."),
        click.option("--mqtt-ca", type=_FILE, help="Trust the certificates of these CAs only (PEM)."),
        click.option(
            "--mqtt", metavar="URL", help="The MQTT broker: mqtt://[user[:password]@]host[:port], mqtts:// for TLS."
        ),
    ):
        command = option(command)
    return command


def mqtt_broker(given: Mapping[str, Any]) -> tuple[MqttAddress, MqttTrust]:
    """The broker that the options name, with the configured password."""
    from seriatim.sparkplug.mqtt_address import MqttAddress, MqttTrust

    if not given["mqtt"]:
        raise click.UsageError("Missing option '--mqtt': name the MQTT broker, such as --mqtt mqtt://localhost:1883.")
    address = MqttAddress.parse(given["mqtt"], configuration().values.mqtt_password or None)
    return address, MqttTrust(given["mqtt_ca"], given["mqtt_cert"], given["mqtt_key"])
