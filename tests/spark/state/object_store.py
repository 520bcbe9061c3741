"""An object store on loopback that speaks as much of S3 as state needs, counts requests, and fails when it is told to."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BufferedIOBase, BytesIO
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

TEMPORARILY = 503


class ObjectStore(ThreadingHTTPServer):
    """The objects by bucket and key; ``requests`` counts what was asked for, ``failing`` how many requests still fail.

    ``fails_at``: requests of this kind, or all.
    """

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        self.requests: Counter[str] = Counter()
        self.keys_used: set[str] = set()
        self.failing = 0
        self.fails_at = ""
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def settings(self) -> str:
        """What follows the ``?`` of an address here."""
        return f"endpoint_override={self.endpoint}&scheme=http&region=here&access_key=the-key&secret_key=the-secret"


@contextmanager
def running() -> Iterator[ObjectStore]:
    store = ObjectStore()
    thread = threading.Thread(target=store.serve_forever)
    thread.start()
    try:
        yield store
    finally:
        store.shutdown()
        thread.join()
        store.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: ObjectStore
    protocol_version = "HTTP/1.1"

    def log_message(self, *arguments: object) -> None:
        pass

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except ConnectionError:
            self.close_connection = True

    def _begin(self, what: str) -> str | None:
        """The name of the object, unless this request is to fail."""
        self._body = self._read_body()
        with self.server.lock:
            self.server.requests[what] += 1
            self.server.keys_used.add(
                self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
            )
            if self.server.failing > 0 and self.server.fails_at in what:
                self.server.failing -= 1
                self._answer(
                    TEMPORARILY,
                    b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>",
                )
                return None
        return unquote(urlsplit(self.path).path).lstrip("/")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(_chunks(self.rfile))
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        # The content is in chunks of its own, with a checksum behind them.
        return b"".join(_chunks(BytesIO(body))) if "x-amz-decoded-content-length" in self.headers else body

    def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_PUT(self) -> None:
        name = self._begin("PUT")
        if name is not None:
            self.server.objects[name] = self._body
            self._answer(200, ETag='"x"')

    def do_HEAD(self) -> None:
        name = self._begin("HEAD")
        if name is None:
            return
        content = self.server.objects.get(name)
        if content is None:
            self._answer(404)
        else:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        name = self._begin("LIST" if "list-type" in query else "GET")
        if name is None:
            return
        if "list-type" in query:
            self._list(name.rstrip("/"), query.get("prefix", [""])[0], query.get("delimiter", [""])[0])
        elif name not in self.server.objects:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        else:
            content = self.server.objects[name]
            first, _, last = self.headers.get("Range", "bytes=0-").partition("=")[2].partition("-")
            end = min(int(last) + 1 if last else len(content), len(content))
            part = f"bytes {first}-{end - 1}/{len(content)}"
            self._answer(206, content[int(first) : end], Content_Range=part)

    def _list(self, bucket: str, prefix: str, delimiter: str) -> None:
        keys = sorted(
            name.removeprefix(f"{bucket}/") for name in list(self.server.objects) if name.startswith(f"{bucket}/")
        )
        found, folders = [], set()
        for key in (key for key in keys if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folders.add(prefix + rest.partition(delimiter)[0] + delimiter)
            else:
                size = len(self.server.objects[f"{bucket}/{key}"])
                found.append(f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size></Contents>")
        common = [f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in sorted(folders)]
        result = f"<ListBucketResult><IsTruncated>false</IsTruncated>{''.join(found + common)}</ListBucketResult>"
        self._answer(200, result.encode())

    def do_DELETE(self) -> None:
        name = self._begin("DELETE")
        if name is not None:
            self.server.objects.pop(name, None)
            self._answer(204)

    def do_POST(self) -> None:
        name = self._begin("DELETE MANY")
        if name is not None:
            bucket = name.rstrip("/")
            for part in self._body.decode().split("<Key>")[1:]:
                self.server.objects.pop(f"{bucket}/{unquote(part.partition('</Key>')[0])}", None)
            self._answer(200, b"<DeleteResult></DeleteResult>")


def _chunks(stream: BufferedIOBase) -> Iterator[bytes]:
    """Chunks, each after its size in hex; the last one is empty."""
    while size := int(stream.readline().partition(b";")[0], 16):
        yield stream.read(size)
        stream.readline()
    while stream.readline().strip():
        pass
