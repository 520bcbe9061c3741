"""A real S3 server for the tests: S3Proxy on the loopback, with objects in its memory.

Requests reach it through a gate that notes them, and that can turn some of them away, as S3 does with too many
(``503 SlowDown``). Where Maven is missing the test says so (``needs.py``).
"""

from __future__ import annotations

import http.client
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from pyarrow import fs

from tests.fast import refuse
from tests.kafka_broker import HOST, JAVA_OPTIONS, START_TIMEOUT_S
from tests.maven import jars
from tests.needs import needs_program
from tests.ports import free_port

S3PROXY = "org.gaul:s3proxy:3.0.0"
KEY, SECRET, REGION = "the-key", "a/secret+with&signs", "eu-central-1"
CHECKSUMS = {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
"""Processes that use this server need this in their environment: it does not know AWS's newer checksums."""
CONFIGURATION = """\
s3proxy.endpoint=http://{host}:{port}
s3proxy.authorization=aws-v2-or-v4
s3proxy.identity={key}
s3proxy.credential={secret}
jclouds.provider=transient
jclouds.identity=none
jclouds.credential=none
"""
LOGBACK = """\
<configuration>
  <appender name="OUT" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%level %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="OUT"/></root>
</configuration>
"""


class Request(NamedTuple):
    """What was asked for: ``COPY`` is a PUT that copies another object, ``LIST`` a GET that lists."""

    method: str
    path: str


class S3Server:
    """The server behind its gate. ``requests`` notes what came; every ``turn_away``-th request is turned away, 0 for none."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.requests: list[Request] = []
        self.turn_away = 0
        self.turned_away = 0
        self.lock = threading.Lock()
        self.gate = _Gate(self)
        self.endpoint = f"{HOST}:{self.gate.server_port}"
        self.port = free_port()

    @contextmanager
    def running(self) -> Iterator[S3Server]:
        process = self._start()
        thread = threading.Thread(target=self.gate.serve_forever)
        thread.start()
        try:
            yield self
        finally:
            self.gate.shutdown()
            thread.join()
            self.gate.server_close()
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        refuse("S3Proxy")
        configuration, logback = self._folder / "s3proxy.properties", self._folder / "logback.xml"
        words = {"host": HOST, "port": self.port, "key": KEY, "secret": SECRET}
        configuration.write_text(CONFIGURATION.format(**words))
        logback.write_text(LOGBACK)
        java = needs_program("java", hint="apt install default-jre-headless")
        command = [java, *JAVA_OPTIONS, f"-Dlogback.configurationFile={logback}", "-cp", os.pathsep.join(jars(S3PROXY))]
        command += ["org.gaul.s3proxy.Main", "--properties", str(configuration)]
        log = self._folder / "s3proxy.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._answers():
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                process.wait()
                raise AssertionError(f"S3Proxy did not start: {log.read_text()[-4000:]}")
            time.sleep(0.05)
        return process

    def _answers(self) -> bool:
        with suppress(OSError, http.client.HTTPException):
            self.forward("GET", "/", {}, b"")
            return True
        return False

    def forward(self, method: str, path: str, headers: dict[str, str], body: bytes) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=60)
        connection.putrequest(method, path, skip_host="Host" in headers, skip_accept_encoding=True)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        response.content = response.read()  # type: ignore[attr-defined]
        connection.close()
        return response

    def make_bucket(self, name: str) -> None:
        self.files(region="us-east-1", allow_bucket_creation=True).create_dir(name)  # it knows no other region

    def files(self, **options: Any) -> fs.S3FileSystem:
        """The buckets, as pyarrow sees them; environment as in ``CHECKSUMS``."""
        own = {"endpoint_override": self.endpoint, "scheme": "http", "access_key": KEY, "secret_key": SECRET}
        return fs.S3FileSystem(**own | {"region": REGION} | options)

    def count(self, method: str, under: str) -> int:
        """How many requests of a kind there were for objects whose path begins so."""
        return sum(one.method == method and one.path.startswith(f"/{under}") for one in self.requests)


class _Gate(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, server: S3Server) -> None:
        super().__init__((HOST, 0), _Handler)
        self.behind = server


class _Handler(BaseHTTPRequestHandler):
    server: _Gate
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _pass_on(self) -> None:
        behind = self.server.behind
        body = self._read_body()
        with behind.lock:
            behind.requests.append(self._request())
            turned_away = behind.turn_away and len(behind.requests) % behind.turn_away == 0
            behind.turned_away += bool(turned_away)
        if turned_away:
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>")
            return
        hop = {"expect", "transfer-encoding", "content-length", "connection"}
        headers = {name: value for name, value in self.headers.items() if name.lower() not in hop}
        response = behind.forward(self.command, self.path, headers | {"Content-Length": str(len(body))}, body)
        kept = {name: value for name, value in response.getheaders() if name.lower() not in hop}
        length = response.getheader("Content-Length") if self.command == "HEAD" else None
        self._answer(response.status, kept, response.content, length)  # type: ignore[attr-defined]

    do_GET = do_PUT = do_HEAD = do_DELETE = do_POST = _pass_on  # noqa: N815 - the names of the base class

    def _request(self) -> Request:
        address = urlsplit(self.path)
        method = "LIST" if "list-type=" in address.query else self.command
        return Request("COPY" if "x-amz-copy-source" in self.headers else method, unquote(address.path))

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
        found = b""
        while size := int(self.rfile.readline().partition(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return found

    def _answer(self, status: int, headers: dict[str, str], body: bytes, length: str | None = None) -> None:
        self.send_response_only(status)
        for name, value in {**headers, "Content-Length": length or str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD" and status not in {204, 304}:
            self.wfile.write(body)
