"""Figures for Prometheus, and who may see them."""

from __future__ import annotations

import ssl
import urllib.request
from pathlib import Path
from urllib.error import HTTPError

from seriatim.server.metrics import serve_metrics
from tests.certificates import new_certificate
from tests.server.served import server_in_thread
from tests.server.test_access import TOKENS, tokens_in

WATCHER = """
[watcher]
token = "m"
metrics = true
"""


def status_of(url: str, token: str | None, context: ssl.SSLContext) -> int:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), context=context) as answer:
            assert b"seriatim_commits_failed_total 0.0" in answer.read()
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def test_where_there_are_tokens_one_with_the_right_is_needed(tmp_path: Path) -> None:
    certificate, key = new_certificate()
    (tmp_path / "cert.pem").write_bytes(certificate)
    (tmp_path / "key.pem").write_bytes(key)
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    served.load_cert_chain(tmp_path / "cert.pem", tmp_path / "key.pem")
    trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
    trusting.check_hostname = False
    with server_in_thread() as server:
        metrics = serve_metrics(server.engine, tokens_in(tmp_path, TOKENS + WATCHER))
        url = f"https://127.0.0.1:{server.run(metrics.start('127.0.0.1', 0, served))}/metrics"
        statuses = {token: status_of(url, token, trusting) for token in (None, "wrong", "p", "s", "m", "root")}
        server.run(metrics.stop())
    assert statuses == {None: 401, "wrong": 401, "p": 403, "s": 403, "m": 200, "root": 200}
