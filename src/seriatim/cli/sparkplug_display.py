"""How a host application is shown on a terminal: one line that changes, and a sentence at the end."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.live import Live

from seriatim.core.edge_messages import Status

if TYPE_CHECKING:
    from seriatim.sparkplug.host import Host


class HostDisplay:
    """A live line on standard error, or nothing when that is not a terminal."""

    def __init__(self, live: Live | None) -> None:
        self._live = live

    @classmethod
    def for_terminal(cls, *, enabled: bool) -> HostDisplay:
        shown = enabled and sys.stderr.isatty()
        return cls(Live(console=Console(file=sys.stderr), transient=True, auto_refresh=False) if shown else None)

    def __enter__(self) -> HostDisplay:
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def show(self, host: Host) -> None:
        if self._live:
            self._live.update(self.line(host), refresh=True)

    def notice(self, text: str) -> None:
        """Say something that stays, on standard error."""
        if self._live:
            self._live.console.print(text, highlight=False, markup=False)
        else:
            click.echo(text, err=True)

    @staticmethod
    def line(host: Host) -> str:
        """How things stand."""
        online = sum(node.status is Status.ONLINE for node in host.nodes)
        held = sum(node.held_count for node in host.nodes)
        connection = "connected" if host.online.is_set() else "no connection"
        return (
            f"{connection} · {online}/{len(host.nodes)} nodes online · {host.counts.stored} stored · {held} held · "
            f"{host.counts.rebirths} rebirth requests · {HostDisplay.trouble(host)}"
        )

    @staticmethod
    def trouble(host: Host) -> str:
        """What was not stored, and why."""
        counts = host.counts
        found = {**counts.ledger, **{f"malformed {what}": count for what, count in counts.malformed.items()}}
        found["unread"] = counts.unread
        return ", ".join(f"{count} {what}" for what, count in sorted(found.items()) if count) or "nothing dropped"

    @staticmethod
    def summary(host: Host) -> str:
        """What happened, when it is over."""
        return f"{host.counts.stored} messages of {len(host.nodes)} edge nodes stored; {HostDisplay.trouble(host)}"
