"""A real MQTT broker for the tests: Debian's mosquitto, on a free port of this machine, gone when its test is.

Where it is neither installed nor can be fetched (``debian.py``), the test says so (``needs.py``).
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import time
from base64 import b64encode
from pathlib import Path

from tests.debian import Found, NotAvailable, find_program
from tests.fast import refuse
from tests.needs import lacking
from tests.ports import free_port

PACKAGES = ("mosquitto", "libmosquitto1", "libdlt2", "libcjson1", "libwrap0")
CONFIGURATION = """
listener {port} {address}
persistence false
user root
max_queued_messages 0
sys_interval {sys_interval}
log_dest none
{access}
"""
SYS_INTERVAL = 1
"""How often it says how it is, in seconds."""
EVERYBODY = "allow_anonymous true"


class Mosquitto:
    """One broker. It may be stopped and started again on the same port. ``access`` says in its words whom it lets in.

    ``address`` is where it listens; only on the loopback can it be started here.
    """

    def __init__(self, folder: Path, access: str = EVERYBODY, address: str = "127.0.0.1") -> None:
        self._folder = folder
        self._access = access
        self.address = address
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"mqtt://{self.address}:{self.port}"

    def command(self) -> list[str]:
        """What starts it, for those who watch over its process themselves."""
        configuration = self._folder / "mosquitto.conf"
        configuration.write_text(
            CONFIGURATION.format(address=self.address, port=self.port, access=self._access, sys_interval=SYS_INTERVAL)
        )
        return [_program().path, "-c", str(configuration)]

    @property
    def environment(self) -> dict[str, str]:
        return {"LD_LIBRARY_PATH": _program().libraries}

    def start(self) -> None:
        refuse("an MQTT broker")
        self._process = subprocess.Popen(
            self.command(),
            env={**os.environ, **self.environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        self._wait_until_it_listens()

    def _wait_until_it_listens(self) -> None:
        assert self._process is not None
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                if self._process.poll() is not None or time.monotonic() > end:
                    self.stop()
                    lacking("mosquitto did not start")
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


def password_line(user: str, password: str) -> str:
    """What a password file of mosquitto has about a user."""
    salt = b"twelve bytes"
    digest = hashlib.pbkdf2_hmac("sha512", password.encode(), salt, 101)
    return f"{user}:$7$101${b64encode(salt).decode()}${b64encode(digest).decode()}\n"


def _program() -> Found:
    try:
        return find_program("mosquitto", PACKAGES, "usr/sbin/mosquitto")
    except NotAvailable as error:
        lacking(str(error))
