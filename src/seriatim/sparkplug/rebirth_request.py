"""Requesting a rebirth of an edge node by hand, without a host application.

The command is the one that a host sends: NCMD with ``Node Control/Rebirth``, QoS 0, not retained. The node's NBIRTH is
subscribed to first, so that the answer can't be missed.
"""

from __future__ import annotations

import asyncio
import time

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra
from seriatim.sparkplug.mqtt_address import MqttAddress, MqttTrust, refusal_of
from seriatim.sparkplug.payload import rebirth_command
from seriatim.sparkplug.topics import NodeId, birth_topic, check_node, command_topic

require_extra("mqtt", "aiomqtt", "paho.mqtt", what="asking for a rebirth")

import aiomqtt  # noqa: E402


async def ask_for_rebirth(
    address: MqttAddress, node: NodeId, *, trust: MqttTrust | None = None, wait: float = 10.0
) -> bool:
    """Request a rebirth, and wait for the birth. False if none arrives within ``wait`` seconds; 0 does not wait."""
    check_node(node)
    tls = (trust or MqttTrust()).for_address(address)
    client = aiomqtt.Client(
        address.host, address.port, username=address.user, password=address.password, tls_context=tls
    )
    try:
        async with client:
            await client.subscribe(birth_topic(node), qos=1)
            command = rebirth_command(time.time_ns() // 1_000_000)
            await client.publish(command_topic(node), command, qos=0, retain=False)
            return bool(wait) and await _birth_within(client, wait)
    except aiomqtt.MqttError as error:
        refusal = refusal_of(error, address)
        raise refusal or FailedPrecondition(f"no connection to the MQTT broker {address}: {error}") from error


async def _birth_within(client: aiomqtt.Client, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            async for message in client.messages:
                if not message.retain:  # births must not be retained: this would be an old one
                    return True
    except TimeoutError:
        pass
    return False
