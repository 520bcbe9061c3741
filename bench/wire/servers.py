"""The servers that are compared, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import NamedTuple

JAR = "platform/pubsub-emulator/lib/cloud-pubsub-emulator-*-all.jar"
PATIENCE = 30.0


class Served(NamedTuple):
    """A server that runs."""

    address: str
    process: int


@contextmanager
def ours(window: int = 1, environment: dict[str, str] | None = None) -> Iterator[Served]:
    """``seriatim serve`` on a new SQLite file."""
    with TemporaryDirectory(prefix="wire-") as folder:
        command = [sys.executable, "-m", "seriatim", "serve", "--json", "--port", "0", "--window", str(window)]
        command += ["--store", f"sqlite:///{folder}/store.db"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert server.stdout is not None
        try:
            yield Served(f"127.0.0.1:{json.loads(server.stdout.readline())['port']}", server.pid)
        finally:
            server.terminate()
            server.wait()
            server.stdout.close()


def emulator_jar() -> Path | None:
    """Where the emulator is: named by PUBSUB_EMULATOR_JAR, or in the SDK that gcloud belongs to."""
    if named := os.environ.get("PUBSUB_EMULATOR_JAR"):
        return Path(named)
    gcloud = shutil.which("gcloud")
    return None if gcloud is None else next(Path(gcloud).resolve().parent.parent.glob(JAR), None)


def why_no_emulator() -> str | None:
    if emulator_jar() is None:
        return "its jar is not here: install google-cloud-cli-pubsub-emulator, or set PUBSUB_EMULATOR_JAR"
    return None if shutil.which("java") else "there is no java on the PATH"


@contextmanager
def emulator() -> Iterator[Served]:
    """The emulator, fresh and empty."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["java", "-jar", str(emulator_jar()), "--host=127.0.0.1", f"--port={port}"]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _await_port(port)
        yield Served(f"127.0.0.1:{port}", server.pid)
    finally:
        server.terminate()
        server.wait()


def _await_port(port: int) -> None:
    deadline = monotonic() + PATIENCE
    while monotonic() < deadline:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port)):
            return
        sleep(0.05)
    raise TimeoutError(f"the emulator did not start within {PATIENCE:.0f} seconds")
