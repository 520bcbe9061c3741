"""Which connections of clients still exist.

gRPC doesn't tell a server whether a call was cancelled by its client or ended together with the connection, so the operating
system is asked: the kernel's table of TCP connections shows which are established. A process that was killed has lost its
connections before gRPC hears of it.

Where the table can't be read (it is Linux's), or a proxy stands in between and keeps its own connection, a client counts as
connected.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import unquote

_TABLES = ("/proc/self/net/tcp", "/proc/self/net/tcp6")
_REMOTE, _STATE = 2, 3  # columns
_ESTABLISHED = "01"


def connected(peers: Collection[str]) -> set[str]:
    """Those of some peers, as gRPC names them (``ipv4:127.0.0.1:4711``), that are connected, or may be."""
    tables = [table for table in map(Path, _TABLES) if table.exists()]  # there may be no IPv6
    if not tables:
        return set(peers)
    established = {end for table in tables for end in _established(table.read_text(encoding="ascii"))}
    columns = {peer: _columns(peer) for peer in peers}
    return {peer for peer, names in columns.items() if not names or not names.isdisjoint(established)}


def _established(table: str) -> Iterator[str]:
    """The far ends of the established connections in a table, as it spells them."""
    for row in map(str.split, table.splitlines()[1:]):
        if row[_STATE] == _ESTABLISHED:
            yield row[_REMOTE]


def _columns(peer: str) -> set[str]:
    """How the tables may spell a peer; nothing for one that has no TCP address."""
    kind, _, address = unquote(peer).partition(":")
    host, _, port = address.rpartition(":")
    if kind not in ("ipv4", "ipv6") or not port.isdecimal():
        return set()
    try:
        parsed = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return set()
    mapped = [IPv6Address(f"::ffff:{parsed}")] if isinstance(parsed, IPv4Address) else []
    return {f"{_hexadecimal(one.packed)}:{int(port):04X}" for one in (parsed, *mapped)}


def _hexadecimal(address: bytes) -> str:
    """Words of four bytes in the order of this machine."""
    words = (address[start : start + 4] for start in range(0, len(address), 4))
    return "".join(f"{int.from_bytes(word, sys.byteorder):08X}" for word in words)
