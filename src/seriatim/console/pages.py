"""The pages of the console. They show the API's data, and their buttons call the API (``static/console.js``).

A page is complete without JavaScript. With it, the part marked ``live`` is reloaded at every tick of the event stream.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import parse_qs, urlencode

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from starlette.responses import Response

from seriatim.engine.broker import Broker, KeyInfo, KeyOrder, KeyState
from seriatim.engine.message_ids import last_page
from seriatim.engine.metrics import SubscriptionStats
from seriatim.engine.overview import is_slow
from seriatim.engine.reported_status import (
    AuditStatus,
    BatchStatus,
    HostStatus,
    NodeStatus,
    PipelineStatus,
    is_fresh,
    left_statuses,
)
from seriatim.errors import SeriatimError

if TYPE_CHECKING:
    from seriatim.console.app import Console

PAGE = 50
STUCK, DEVICES = 3, 10
ONLINE = "online"
SHOWN_BYTES = 2_000
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def add_pages(app: FastAPI) -> None:
    """Add the pages, which are excluded from the API's description."""
    for path, function in _PAGES.items():
        app.add_api_route(path, function, methods=["GET"], include_in_schema=False)
    app.add_api_route("/login", _log_in, methods=["POST"], include_in_schema=False)
    app.add_api_route("/logout", _log_out, methods=["POST"], include_in_schema=False)


# -- formatting -------------------------------------------------------------------------------------------------------


def age(seconds: float | None) -> str:
    """A duration, in its two largest units."""
    if seconds is None:
        return "–"
    if seconds < _MINUTE:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    for size, unit, smaller, name in ((_DAY, "d", _HOUR, "h"), (_HOUR, "h", _MINUTE, "min"), (_MINUTE, "min", 1, "s")):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} {seconds % size // smaller:.0f} {name}"
    raise AssertionError


def when(time: datetime | None) -> Markup:
    """A time in UTC, and how long ago it was."""
    if time is None:
        return Markup("–")
    seconds = (datetime.now(UTC) - time).total_seconds()
    said = f"{age(seconds)} ago" if seconds >= 0 else f"in {age(-seconds)}"
    text = time.strftime("%Y-%m-%d %H:%M:%S UTC")
    return Markup('<time datetime="{0}" title="{1}">{2}</time>').format(time.isoformat(), text, said)


def size(count: int) -> str:
    """Bytes in the largest fitting unit."""
    unit = min(max(count.bit_length() - 1, 0) // 10, 4)
    return f"{count / 1024**unit:.0f} {('B', 'KiB', 'MiB', 'GiB', 'TiB')[unit]}"


def rate(number: float) -> str:
    return f"{number:,.0f}" if number >= 10 or number == 0 else f"{number:.1f}"


def _is_slow(stats: SubscriptionStats) -> bool:
    return is_slow(
        consumers=stats.consumers, paused=stats.paused, blocked_keys=stats.blocked_keys, oldest_age=stats.oldest_age
    )


def spark(points: Sequence[tuple[float, float]], label: str) -> Markup:
    """A small chart of the last hour, or of the part that is known."""
    top, span = max((value for _, value in points), default=0.0), max([_MINUTE, *(ago for ago, _ in points)])
    line = " ".join(
        f"{120 - 120 * ago / span:.1f},{27 - 24 * (value / top if top else 0):.1f}" for ago, value in points
    )
    said = f"{label}, last {age(span)}, up to {rate(top)}" if points else f"{label}: no history yet"
    return Markup(
        '<svg class="spark" viewBox="0 0 120 30" preserveAspectRatio="none" role="img" aria-label="{}">'
        '<polyline points="{}" fill="none" vector-effect="non-scaling-stroke"/></svg>'
    ).format(said, line)


def strip(batches: Sequence[BatchStatus], every: Sequence[BatchStatus], label: str, height: int = 40) -> Markup:
    """The ledger of a pipeline over time: a column for each batch, in which even a single missing message is seen. The strip
    of a key is drawn to stand below that of ``every`` batch, whose columns say what they hold."""
    if not every:
        return Markup()
    first, width = every[0].batch, (every[-1].batch - every[0].batch + 1) * 6
    columns, paths = list[str](), {name: list[str]() for name in ("column", *_FAULTS)}
    for one in batches:
        if one.batch < first:
            continue
        left, below = (one.batch - first) * 6, height
        counts = {name: getattr(one, name) for name in _FAULTS}
        for name, count in counts.items():
            if count:
                part = max(5, height * count // (one.ordered + sum(counts.values())))
                below -= part
                paths[name].append(f"M{left} {max(below, 0)}h5v{part}h-5z")
        if batches is not every:
            paths["column"].append(f"M{left} 0h5v{height}h-5z")
            continue
        held = ", ".join(f"{count} {name}" for name, count in {"in order": one.ordered, **counts}.items())
        said = f"<title>batch {one.batch}, {one.time:%Y-%m-%d %H:%M:%S} UTC: {held}</title>"
        columns.append(f'<rect class="column" x="{left}" y="0" width="5" height="{height}">{said}</rect>')
    drawn = (f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in paths.items() if parts)
    shown = width if batches is every else min(width, 480)
    return Markup(
        '<svg class="strip" viewBox="0 0 {0} {2}" width="{1}" height="{2}" preserveAspectRatio="none" role="img" '
        'aria-label="{3}"><rect class="ordered" x="0" y="0" width="{0}" height="{2}"/>{4}</svg>'
    ).format(width, shown, height, label, Markup("".join([*columns, *drawn])))


_FAULTS = ("lost", "late", "duplicate", "other")
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters |= {
    "age": age,
    "when": when,
    "rate": rate,
    "size": size,
    "number": lambda value: f"{value:,}",
    "query": lambda values: urlencode({name: value for name, value in values.items() if value not in (None, "")}),
    "json": json.dumps,
}
_TEMPLATES.globals |= {"spark": spark, "is_fresh": is_fresh, "is_slow": _is_slow}


def _render(request: Request, template: str, status: int = 200, **values: Any) -> HTMLResponse:
    rights = getattr(request.state, "rights", None)
    text = _TEMPLATES.get_template(template).render(
        base=request.scope.get("root_path", ""), rights=rights, path=request.url.path, **values
    )
    return HTMLResponse(text, status)


def problem_page(request: Request, problem: str, status: int) -> HTMLResponse:
    """An error, as a page."""
    return _render(request, "problem.html", status, problem=problem)


def _console(request: Request) -> Console:
    console: Console = request.app.state.console
    return console


# -- login ------------------------------------------------------------------------------------------------------------


async def _login_page(request: Request, token: str = "", to: str = "") -> Response:
    return _begin(request, token, to) if token else _render(request, "login.html", to=to, problem=None)


async def _log_in(request: Request) -> Response:
    form = parse_qs((await request.body()).decode(errors="replace"), keep_blank_values=True, max_num_fields=10)
    return _begin(request, form.get("token", [""])[0].strip(), form.get("to", [""])[0])


def _begin(request: Request, token: str, to: str) -> Response:
    base = request.scope.get("root_path", "")
    inside = to.startswith(f"{base}/") and not to.startswith(("//", "/\\"))
    response: Response = RedirectResponse(to if inside else f"{base}/", 303)
    try:
        request.state.gate.log_in(request, token, response)
    except SeriatimError as error:
        return _render(request, "login.html", 401, to=to, problem=error.message)
    return response


async def _log_out(request: Request) -> Response:
    response = RedirectResponse(f"{request.scope.get('root_path', '')}/login", 303)
    request.state.gate.log_out(request, response)
    return response


# -- pages ------------------------------------------------------------------------------------------------------------


async def _overview(request: Request, search: str = "", page: Annotated[int, Query(ge=1, le=1000)] = 1) -> Response:
    console = _console(request)
    broker = console.require_broker()
    found = await console.looks.share(
        ("overview", search, page), lambda: broker.overview(search=search, limit=PAGE, skip=(page - 1) * PAGE)
    )
    return _render(
        request,
        "overview.html",
        overview=found,
        health=await console.looks.share(("health",), broker.health),
        figures=await console.sampler.figures(),
        series=console.sampler.series(),
        stuck=await console.looks.share(("stuck", search, page), lambda: _stuck_keys(broker, found.worst)),
        search=search,
        page=page,
        is_last=len(found.worst) < PAGE,
    )


async def _stuck_keys(broker: Broker, worst: Sequence[SubscriptionStats]) -> list[tuple[str, KeyInfo]]:
    """The first key that is stuck in each of the worst subscriptions."""
    found: list[tuple[str, KeyInfo]] = []
    for one in [one for one in worst if one.blocked_keys or _is_slow(one)][:STUCK]:
        with suppress(SeriatimError):  # it was deleted meanwhile, or the store is away
            keys = await broker.list_keys(one.subscription, limit=1, order="trouble" if one.blocked_keys else "oldest")
            found += [(one.subscription, key) for key in keys]
    return found


async def _topics(request: Request, search: str = "", after: str | None = None) -> Response:
    topics = await _console(request).require_broker().list_topics(prefix=search, after=after, limit=PAGE)
    return _render(request, "topics.html", topics=topics, search=search, is_last=len(topics) < PAGE)


async def _topic(request: Request, name: str, start: str = "", key: str = "", after: str | None = None) -> Response:
    console = _console(request)
    broker = console.require_broker()
    topic = await broker.describe_topic(name)
    subscriptions = await console.looks.share(("subscriptions", name, after), lambda: _stats_of(broker, name, after))
    first = start or last_page(topic.earliest, topic.next_offset, PAGE)
    return _render(
        request,
        "topic.html",
        topic=topic,
        subscriptions=subscriptions,
        is_last=len(subscriptions) < PAGE,
        messages=await broker.read_messages(name, start=first, limit=PAGE, key=key or None),
        start=first,
        key=key,
        after=after,
        shown=_shown,
    )


async def _stats_of(broker: Broker, topic: str, after: str | None) -> list[SubscriptionStats]:
    found = await broker.list_subscriptions(topic=topic, after=after, limit=PAGE)
    return [await broker.stats(one.name) for one in found]


async def _subscription(
    request: Request,
    name: str,
    state: KeyState | Literal[""] = "",
    order: KeyOrder = "trouble",
    search: str = "",
    page: Annotated[int, Query(ge=1, le=200)] = 1,
) -> Response:
    console = _console(request)
    broker, share = console.require_broker(), console.looks.share
    keys = await share(
        ("keys", name, state, order, search, page),
        lambda: broker.list_keys(
            name, limit=PAGE, skip=(page - 1) * PAGE, order=order, state=state or None, search=search
        ),
    )
    return _render(
        request,
        "subscription.html",
        info=await broker.describe_subscription(name),
        stats=await share(("stats", name), lambda: broker.stats(name)),
        keys=keys,
        reasons=await share(("reasons", name), lambda: broker.group_keys(name, 5)),
        groups=await share(("groups", name, 5), lambda: broker.group_dead_letters(name, 5)),
        asked={"name": name, "state": state, "order": order, "search": search},
        page=page,
        is_last=len(keys) < PAGE,
    )


async def _key(request: Request, subscription: str, key: str | None = None) -> Response:
    broker = _console(request).require_broker()
    found = await broker.describe_key(subscription, key)
    messages, options = (
        await broker.peek(subscription, key, 5),
        (await broker.describe_subscription(subscription)).options,
    )
    return _render(request, "key.html", key=key, found=found, messages=messages, halted=options.paused, shown=_shown)


async def _dead_letters(request: Request, subscription: str, error: str | None = None, after: str = "") -> Response:
    console = _console(request)
    broker = console.require_broker()
    letters = await broker.dead_letters(subscription, limit=PAGE, after=after or None, error=error)
    return _render(
        request,
        "dead_letters.html",
        subscription=subscription,
        topic=(await broker.describe_subscription(subscription)).topic,
        groups=await console.looks.share(
            ("groups", subscription, PAGE), lambda: broker.group_dead_letters(subscription, PAGE)
        ),
        letters=letters,
        error=error,
        is_last=len(letters) < PAGE,
    )


async def _pipelines(request: Request) -> Response:
    console = _console(request)
    broker, share = console.require_broker(), console.looks.share
    pipelines = await share(("pipelines",), lambda: _drawn_pipelines(broker))
    audits = await share(("audits",), lambda: left_statuses(broker, AuditStatus))
    return _render(request, "pipelines.html", pipelines=pipelines, audits=audits)


async def _drawn_pipelines(broker: Broker) -> list[tuple[PipelineStatus, Markup, list[Markup]]]:
    """Pipelines with their strips: of all keys, and of each that has gaps. There may be thousands of columns."""

    def draw(one: PipelineStatus) -> tuple[PipelineStatus, Markup, list[Markup]]:
        of_all = strip(one.batches, one.batches, "Batches of all keys, the oldest first")
        of_keys = [strip(key.batches, one.batches, f"Batches with entries about {key.key}", 16) for key in one.keys]
        return one, of_all, of_keys

    pipelines = await left_statuses(broker, PipelineStatus)
    return await asyncio.to_thread(lambda: list(map(draw, pipelines)))


async def _sparkplug(request: Request, search: str = "", page: Annotated[int, Query(ge=1, le=200)] = 1) -> Response:
    console = _console(request)
    broker = console.require_broker()
    hosts = await console.looks.share(("hosts",), lambda: left_statuses(broker, HostStatus))
    nodes = {host.name: [node for node in host.nodes if search in node.node] for host in hosts}
    return _render(
        request,
        "sparkplug.html",
        hosts=[(host, sorted(nodes[host.name], key=_node_rank)[(page - 1) * PAGE : page * PAGE]) for host in hosts],
        sizes={name: Counter(node.group for node in found) for name, found in nodes.items()},
        statuses={host.name: Counter(node.status for node in host.nodes) for host in hosts},
        devices_of=lambda node: sorted(node.devices.items(), key=lambda device: device[1] == ONLINE)[:DEVICES],
        search=search,
        page=page,
        is_last=all(len(found) <= page * PAGE for found in nodes.values()),
    )


def _node_rank(node: NodeStatus) -> tuple[bool, str]:
    """What needs attention comes first."""
    return node.status == ONLINE and not node.held and not node.gaps, node.node


async def _changes(request: Request) -> Response:
    return _render(request, "changes.html", changes=list(request.state.gate.changes)[::-1][:200])


def _shown(data: bytes) -> str:
    """The beginning of a payload."""
    try:
        text = data[:SHOWN_BYTES].decode(errors="strict" if len(data) <= SHOWN_BYTES else "ignore")
    except UnicodeDecodeError:
        text = data[: SHOWN_BYTES // 4].hex(" ")
    return text if len(data) <= SHOWN_BYTES else f"{text} … ({len(data):,} bytes)"


_PAGES: dict[str, Callable[..., Any]] = {
    "/login": _login_page,
    "/": _overview,
    "/topics": _topics,
    "/topic": _topic,
    "/subscription": _subscription,
    "/key": _key,
    "/dead-letters": _dead_letters,
    "/pipelines": _pipelines,
    "/sparkplug": _sparkplug,
    "/changes": _changes,
}
