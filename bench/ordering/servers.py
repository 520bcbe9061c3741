"""Servers that are compared: started on free ports of the loopback, each with a folder of its own, and stopped at the end."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep

START_TIMEOUT_S = 60.0
RABBITMQ = "/usr/lib/rabbitmq/bin/rabbitmq-server"
NATS_CONFIGURATION = """
listen: 127.0.0.1:{port}
max_payload: 1MB
jetstream {{ store_dir: "{folder}", max_file_store: 10GB{sync} }}
"""


def installed(*packages: str) -> str | None:
    """What is missing of Python's packages, or None."""
    for package in packages:
        try:
            version(package)
        except PackageNotFoundError:
            return f"pip install {package}"
    return None


def said_by(*command: str) -> str:
    """The version number in the output of a command."""
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
    except OSError:
        return "?"
    found = re.search(r"\d+(\.\d+)+", output)
    return found[0] if found else "?"


def program(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = monotonic() + START_TIMEOUT_S
    while True:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        if process.poll() is not None or monotonic() > deadline:
            raise RuntimeError(f"{process.args!r} did not start")
        sleep(0.05)


@contextmanager
def rabbitmq() -> Iterator[str]:
    with TemporaryDirectory(prefix="bench-ordering-") as folder:
        port, names = free_port(), free_port()
        environment = {
            **os.environ,
            "HOME": folder,  # the cookie of Erlang
            "RABBITMQ_NODENAME": f"bench{port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": f"{folder}/data",
            "RABBITMQ_LOG_BASE": f"{folder}/log",
            "RABBITMQ_CONF_ENV_FILE": f"{folder}/none",
            "RABBITMQ_CONFIG_FILE": f"{folder}/none",
            "RABBITMQ_ENABLED_PLUGINS_FILE": f"{folder}/plugins",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "ERL_EPMD_PORT": str(names),
        }
        Path(folder, "plugins").write_text("[].\n")
        with Path(folder, "output").open("wb") as output:
            server = subprocess.Popen([RABBITMQ], env=environment, stdout=output, stderr=output, start_new_session=True)
        try:
            await_port(port, server)
            yield f"127.0.0.1:{port}"
        finally:
            os.killpg(server.pid, signal.SIGTERM)
            server.wait()
            subprocess.run(["epmd", "-port", str(names), "-kill"], capture_output=True, check=False)


@contextmanager
def nats() -> Iterator[str]:
    with TemporaryDirectory(prefix="bench-ordering-") as folder:
        port, configuration = free_port(), Path(folder, "nats.conf")
        sync = ", sync_interval: always" if nats_syncs_always() else ""
        configuration.write_text(NATS_CONFIGURATION.format(port=port, folder=folder, sync=sync))
        server = subprocess.Popen(
            [str(program("nats-server")), "-c", str(configuration)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            await_port(port, server)
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait()


def nats_syncs_always() -> bool:
    """Whether it can sync after every message. Before 2.10 it syncs every two minutes, and that can't be changed."""
    major, minor = (int(part) for part in said_by(str(program("nats-server")), "--version").split(".")[:2])
    return (major, minor) >= (2, 10)
