"""Who may do what, and how much of it: tokens, TLS, and limits that protect the others."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from seriatim.engine.access_tokens import Access
from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.server.options import ServerOptions
from seriatim.server.server import Tls
from tests.certificates import new_certificate
from tests.engine.conftest import WatchedStore
from tests.server.conftest import publish
from tests.server.served import PROJECT, SUBSCRIPTION, TOPIC, Raw, ServerThread, server_in_thread
from tests.server.test_resources import status_of

DENIED, UNKNOWN = grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
OTHER = f"{PROJECT}/topics/other"
TOKENS = f"""
[operator]
token = "root"
admin = true

[shop]
token = "p"
publish = ["{PROJECT}/topics/ord*"]

[worker]
token = "s"
subscribe = ["{TOPIC}"]
"""


def tokens_in(folder: Path, text: str = TOKENS) -> Access:
    file = folder / "tokens.toml"
    file.touch(mode=0o600)
    file.write_text(text)
    return Access.load(file)


@pytest.fixture
def guarded(tmp_path) -> Iterator[ServerThread]:
    with server_in_thread(access=tokens_in(tmp_path)) as server:
        operator = server.clients.raw("root")
        for topic in (TOPIC, OTHER):
            operator.CreateTopic(name=topic)
            operator.CreateSubscription(name=topic.replace("topics", "subscriptions"), topic=topic)
        yield server


def everything(raw: Raw) -> dict[str, grpc.StatusCode]:
    """What becomes of each thing that one could do."""
    mine, others = TOPIC.replace("topics", "subscriptions"), OTHER.replace("topics", "subscriptions")
    calls = {
        "publish": lambda: raw.Publish(topic=TOPIC, messages=[{"data": b"x"}]),
        "publish elsewhere": lambda: raw.Publish(topic=OTHER, messages=[{"data": b"x"}]),
        "publish nowhere": lambda: raw.Publish(topic=f"{PROJECT}/topics/none", messages=[{"data": b"x"}]),
        "pull": lambda: raw.Pull(subscription=mine, max_messages=1, return_immediately=True),
        "pull elsewhere": lambda: raw.Pull(subscription=others, max_messages=1, return_immediately=True),
        "pull nowhere": lambda: raw.Pull(subscription=f"{PROJECT}/subscriptions/none", max_messages=1),
        "ack": lambda: raw.Acknowledge(subscription=mine, ack_ids=["1-1-1"]),
        "create": lambda: raw.CreateSubscription(name=f"{mine}-2", topic=TOPIC),
        "list": lambda: raw.ListTopics(project=PROJECT),
        "stream": lambda: _stream(raw, mine),
        "stream elsewhere": lambda: _stream(raw, others),
    }
    return {what: _status(call) for what, call in calls.items()}


def _status(call) -> grpc.StatusCode:
    try:
        call()
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def _stream(raw: Raw, subscription: str) -> None:
    stream = raw.stream(subscription=subscription)
    stream.send()
    stream.receive()


def allowed(outcomes: dict[str, grpc.StatusCode]) -> set[str]:
    return {what for what, status in outcomes.items() if status not in (DENIED, UNKNOWN)}


def test_each_token_allows_what_it_says_and_nothing_else(guarded):
    clients = guarded.clients
    assert set(everything(clients.raw()).values()) == {UNKNOWN}
    assert set(everything(clients.raw("wrong")).values()) == {UNKNOWN}
    assert allowed(everything(clients.raw("p"))) == {"publish"}
    assert allowed(everything(clients.raw("s"))) == {"pull", "ack", "stream"}
    assert len(allowed(everything(clients.raw("root")))) == 11


TWO_PROJECTS = """
[operator]
token = "root"
admin = true

[home]
token = "home"
subscribe = ["projects/seriatim/topics/*"]

[other]
token = "other"
subscribe = ["projects/other/topics/*"]
"""


@pytest.mark.parametrize(("project", "stranger"), [("other", "seriatim"), ("seriatim", "other")])
def test_a_deleted_topic_is_read_by_those_who_might_read_it_before_and_by_nobody_else(tmp_path, project, stranger):
    tokens = {"seriatim": "home", "other": "other"}
    topic, subscription = f"projects/{project}/topics/orders", f"projects/{project}/subscriptions/work"
    with server_in_thread(access=tokens_in(tmp_path, TWO_PROJECTS)) as server:
        operator = server.clients.raw("root")
        operator.CreateTopic(name=topic)
        operator.CreateSubscription(name=subscription, topic=topic)
        operator.Publish(topic=topic, messages=[{"data": b"secret"}])
        operator.DeleteTopic(topic=topic)
        stranger_raw, own = server.clients.raw(tokens[stranger]), server.clients.raw(tokens[project])
        assert _status(lambda: stranger_raw.Pull(subscription=subscription, max_messages=1)) is DENIED
        assert own.Pull(subscription=subscription, max_messages=1).received_messages[0].message.data == b"secret"
        operator.CreateTopic(name=topic)
        assert operator.GetSubscription(subscription=subscription).topic == "_deleted-topic_"


def test_a_topic_that_an_older_version_deleted_is_left_to_administrators(tmp_path):
    subscription = "projects/seriatim/subscriptions/work"
    with server_in_thread(access=tokens_in(tmp_path, TWO_PROJECTS)) as server:
        server.run(server.engine.create_topic("_deleted-topic_/7"))
        server.run(server.engine.create_subscription("_deleted-topic_/7", "work"))
        for token, expected in (("home", DENIED), ("other", DENIED), ("root", grpc.StatusCode.OK)):
            raw = server.clients.raw(token)
            assert _status(lambda raw=raw: raw.GetSubscription(subscription=subscription)) is expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "is not valid TOML"),
        ("[a]\nadmin = true", r"\[a\] needs a token"),
        ('[a]\ntoken = ""', r"\[a\] needs a token"),
        ('a = "b"', r"\[a\] needs a token"),
        ('[a]\ntoken = "x"\nadmn = true', r"\[a\] has admn; known are admin, console, metrics, payloads, pub"),
        ('[a]\ntoken = "x"\nconsole = "root"', r'console of \[a\] is "viewer" or "operator"'),
        ('[a]\ntoken = "x"\npublish = "topic"', r"publish of \[a\] is a list of topics"),
        ('[a]\ntoken = "x"\nadmin = "yes"', r"admin of \[a\] is true or false"),
        ('[a]\ntoken = "x"\nmetrics = 1', r"metrics of \[a\] is true or false"),
        ('[a]\ntoken = "x"\n[b]\ntoken = "x"\nadmin = true', r"\[b\] has the same token as \[a\]"),
    ],
)
def test_files_that_say_nothing_clear(tmp_path, text, said):
    with pytest.raises(InvalidArgument, match=said):
        tokens_in(tmp_path, text)


def test_a_file_of_tokens_is_for_its_owner_alone(tmp_path):
    tokens_in(tmp_path)
    (tmp_path / "tokens.toml").chmod(0o644)
    with pytest.raises(FailedPrecondition, match="chmod 600"):
        Access.load(tmp_path / "tokens.toml")
    with pytest.raises(InvalidArgument, match="can't be read"):
        Access.load(tmp_path / "none.toml")


def test_tls_with_a_token_as_call_credentials(tmp_path):
    tls = Tls(*new_certificate())
    with server_in_thread(access=tokens_in(tmp_path), tls=tls) as server:
        credentials = grpc.composite_channel_credentials(
            grpc.ssl_channel_credentials(tls.certificate), grpc.access_token_call_credentials("root")
        )
        with grpc.secure_channel(server.clients.address, credentials) as channel:
            assert Raw(channel).CreateTopic(name=TOPIC).name == TOPIC
        assert _status(lambda: server.clients.raw("root").ListTopics(project=PROJECT)) is grpc.StatusCode.UNAVAILABLE


def test_a_client_has_only_so_many_streams():
    with server_in_thread(options=ServerOptions(max_streams_per_client=2)) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC)
        streams = [raw.stream() for _ in range(2)]
        for stream in streams:
            stream.send()
            stream.receive()
        assert raw.stream().end() is EXHAUSTED
        assert streams[0].finish() is grpc.StatusCode.OK
        _stream(raw, SUBSCRIPTION)


def test_what_can_not_be_written_fast_enough_is_refused_and_keep_alives_go_on():
    """A disk that hangs: publishing stops at the limit, pings are answered, and everything that was taken is written later."""
    store = WatchedStore()
    with server_in_thread(options=ServerOptions(max_publishing_bytes=3000), store=store) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC)
        stream = raw.stream()
        store.gate.clear()
        with ThreadPoolExecutor(5) as threads:
            futures = [threads.submit(_status, lambda: publish(raw, "x" * 1000)) for _ in range(5)]
            while sum(future.done() for future in futures) < 3:
                stream.send()
                stream.receive()
            store.gate.set()
            outcomes = sorted(future.result().name for future in futures)
        assert outcomes == ["OK", "OK", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED", "RESOURCE_EXHAUSTED"]
        assert len(stream.take(2)) == 2
        assert status_of(raw.Publish, topic=TOPIC, messages=[]) is grpc.StatusCode.INVALID_ARGUMENT


def test_a_client_that_does_not_read_holds_no_more_than_it_may_and_stalls_nobody():
    options = ServerOptions(max_outstanding_bytes=1_000_000)
    with server_in_thread(options=options) as server:
        raw = server.clients.raw()
        raw.CreateTopic(name=TOPIC)
        raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC, enable_message_ordering=True)
        silent = raw.stream(stream_ack_deadline_seconds=600)
        silent.send()
        silent.receive()  # it is there, and reads nothing from now on
        for number in range(40):
            raw.Publish(topic=TOPIC, messages=[{"data": b"x" * 100_000, "ordering_key": f"k{number}"}])
        held = server.run(server.engine.stats(SUBSCRIPTION)).leased
        assert 0 < held <= 11
        other = server.clients.raw().stream(max_outstanding_bytes=10_000_000)
        came = 0
        while came < 40 - held:
            messages = other.receive().received_messages
            other.ack(*messages)
            came += len(messages)
