"""A real Kafka for the tests: one broker that is its own controller (KRaft), from Apache Kafka's jars.

It starts in a few seconds, and listens on free ports of the loopback alone. ``kill`` and ``start`` again is a crash: after it
the broker has all that it acknowledged; ``stop`` is its end. Where Maven is missing the test says so (``needs.py``).
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path

from tests.fast import refuse
from tests.maven import jars
from tests.needs import needs_program
from tests.ports import free_port

KAFKA = "org.apache.kafka:kafka_2.13:4.3.1"
HOST = "127.0.0.1"
START_TIMEOUT_S = 120.0
JAVA_OPTIONS = ("-Xmx384m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Dlog4j2.level=WARN")
CLUSTER_ID = "c2VyaWF0aW0tdGVzdHMxMg"
"""Sixteen bytes in base64, as Kafka wants them."""
CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={folder}/log
num.partitions=1
offsets.topic.num.partitions=3
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=3
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=3
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
log.cleaner.dedupe.buffer.size=4194304
{more}
"""


class KafkaBroker:
    """One broker. It may be killed and started again on the same port.

    ``more`` are lines of its configuration, which may replace others. In them ``{host}``, ``{port}`` and ``{controller}`` are
    filled in, and ``{secure}``: the port of a listener with TLS, which is then at ``secured``.
    """

    def __init__(self, folder: Path, more: str = "") -> None:
        self._folder = folder
        self._more = more
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        self._configuration = folder / "kafka.properties"
        self._choose_ports()

    def _choose_ports(self) -> None:
        self._port = free_port()
        ports = {"host": HOST, "port": self._port, "controller": free_port(), "secure": free_port()}
        self.bootstrap, self.secured = f"{HOST}:{self._port}", f"{HOST}:{ports['secure']}"
        configuration = CONFIGURATION.format(folder=self._folder, more=self._more.format(**ports), **ports)
        self._configuration.write_text(configuration)

    @property
    def log(self) -> Path:
        """What it says."""
        return self._folder / "kafka.log"

    def start(self) -> None:
        refuse("Kafka")
        is_new = not (self._folder / "log").exists()
        for tries_left in (2, 1, 0):
            if not (self._folder / "log").exists():
                self._run("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(self._configuration)).wait()
            self._process = self._run("kafka.Kafka", str(self._configuration))
            try:
                self._wait_until_it_serves(self._process)
            except AssertionError:
                if not (is_new and tries_left):
                    raise
                # Somebody else may have taken a port meanwhile.
                shutil.rmtree(self._folder / "log", ignore_errors=True)
                self._choose_ports()
            else:
                return

    def kill(self) -> None:
        """A crash: it does not get to write anything more."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    stop = kill

    def __enter__(self) -> KafkaBroker:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self, main: str, *arguments: str) -> subprocess.Popen[bytes]:
        java = needs_program("java", hint="apt install default-jre-headless")
        command = [java, *JAVA_OPTIONS, "-cp", os.pathsep.join(jars(KAFKA)), main, *arguments]
        with self.log.open("ab") as output:
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)

    def _wait_until_it_serves(self, process: subprocess.Popen[bytes]) -> None:
        """It opens its port for clients last, when it can answer them."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                socket.create_connection((HOST, self._port), timeout=1).close()
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    self.kill()
                    raise AssertionError(f"Kafka did not start: {self.log.read_text()[-4000:]}") from None
                time.sleep(0.05)
            else:
                return
