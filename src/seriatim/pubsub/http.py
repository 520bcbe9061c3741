"""One HTTP POST, in the event loop. A connection serves one message: endpoints are near, and few messages are out at once."""

from __future__ import annotations

import asyncio

from seriatim.wire.push import Endpoint

CONTINUE = 100


async def post(endpoint: Endpoint, body: bytes, content_type: str) -> int:
    """Post a body, and return the status. Raises OSError or ValueError when there is no proper answer."""
    head = (
        f"POST {endpoint.path} HTTP/1.1\r\nHost: {endpoint.host}:{endpoint.port}\r\nContent-Type: {content_type}\r\n"
        f"Content-Length: {len(body)}\r\nUser-Agent: Seriatim\r\nConnection: close\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection(endpoint.host, endpoint.port, ssl=endpoint.is_secure or None)
    try:
        writer.write(head.encode("ascii") + body)
        await writer.drain()
        while (status := _status(await reader.readline())) == CONTINUE:
            await reader.readuntil(b"\r\n\r\n")
        return status
    finally:
        writer.close()


def _status(line: bytes) -> int:
    version, _, rest = line.partition(b" ")
    if not version.startswith(b"HTTP/1."):
        raise ValueError("the endpoint does not speak HTTP")
    return int(rest[:3])
