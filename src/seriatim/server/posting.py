"""HTTP POSTs, by aiohttp: connections are kept and used again.

Redirections are not followed, cookies are not kept, and the body of an answer is not read: its status is all that counts.
A proxy that the environment names is not used. User and password of an address are sent as basic authentication.
"""

from __future__ import annotations

import aiohttp
from yarl import URL

KEEP_CONNECTION_S = 15.0
"""How long a connection that is not used is kept."""


class Poster:
    """Posts to any number of endpoints."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def post(self, url: str, body: bytes, content_type: str) -> int:
        """Post a body, and return the status of the answer. Raises whatever aiohttp does when there is no proper one."""
        if self._session is None:
            self._session = _new_session()
        headers = {"Content-Type": content_type}
        async with self._session.post(
            URL(url, encoded=True), data=body, headers=headers, allow_redirects=False
        ) as response:
            return response.status

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()


def _new_session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        # No limit here: an endpoint that hangs must not use up what others need. Who posts limits what is under way.
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_CONNECTION_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        headers={"User-Agent": "Seriatim"},
        timeout=aiohttp.ClientTimeout(total=None),  # whoever posts knows how long it may take
        auto_decompress=False,
    )
