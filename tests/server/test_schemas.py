"""Schemas: kept in revisions, and enforced on what is published."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import fastavro
import grpc
import pytest

from seriatim.engine.broker import Document
from seriatim.server import schemas
from tests.server.served import PROJECT, SUBSCRIPTION, TOPIC, server_in_thread
from tests.server.test_resources import INVALID, NOT_FOUND, status_of

NAME = f"{PROJECT}/schemas/order"
AVRO = 2
JSON, BINARY = 1, 2


def record(*fields: str) -> str:
    all_of_them = [{"name": "note", "type": ["null", "string"]}, *({"name": one, "type": "int"} for one in fields)]
    return json.dumps({"type": "record", "name": "Order", "fields": all_of_them})


def make(raw, *fields: str, schema_id: str = "order"):
    return raw.CreateSchema(parent=PROJECT, schema_id=schema_id, schema={"type_": AVRO, "definition": record(*fields)})


def publish_status(raw, data: bytes) -> grpc.StatusCode:
    try:
        raw.Publish(topic=TOPIC, messages=[{"data": data}])
    except grpc.RpcError as error:
        return error.code()
    return grpc.StatusCode.OK


def bind(raw, encoding: int = JSON, **settings: str) -> None:
    raw.CreateTopic(name=TOPIC, schema_settings={"schema": NAME, "encoding": encoding, **settings})
    raw.CreateSubscription(name=SUBSCRIPTION, topic=TOPIC)


@pytest.mark.parametrize(
    ("data", "fits"),
    [
        (b'{"id": 7, "note": null}', True),
        (b'{"id": 7, "note": {"string": "x"}}', True),
        (b'{"id": 7, "note": "x"}', False),
        (b'{"id": "7", "note": null}', False),
        (b'{"id": 7}', False),
        (b'{"id": 7, "note": null, "more": 1}', False),
        (b'{"id": 7, "note": null} {}', False),
        (b"[]", False),
        (b"\xff", False),
        (b"nonsense", False),
    ],
)
def test_json_is_enforced(raw, data, fits):
    make(raw, "id")
    bind(raw)
    assert publish_status(raw, data) is (grpc.StatusCode.OK if fits else INVALID)
    pulled = raw.Pull(subscription=SUBSCRIPTION, max_messages=1, return_immediately=True).received_messages
    assert [one.message.data for one in pulled] == ([data] if fits else [])


def test_binary_is_enforced_and_noted(raw):
    revision = make(raw, "id").revision_id
    bind(raw, BINARY)
    data = io.BytesIO()
    fastavro.schemaless_writer(data, json.loads(record("id")), {"id": 7, "note": None})
    good = data.getvalue()
    assert [publish_status(raw, bad) for bad in (good[:-1], good + b"x", b"\x07")] == [INVALID] * 3
    assert publish_status(raw, good) is grpc.StatusCode.OK
    (received,) = raw.Pull(subscription=SUBSCRIPTION, max_messages=9).received_messages
    assert dict(received.message.attributes) == {
        "googclient_schemaencoding": "BINARY",
        "googclient_schemaname": NAME,
        "googclient_schemarevisionid": revision,
    }


def test_revisions_and_which_of_them_a_topic_takes(raw):
    first = make(raw, "id")
    second = raw.CommitSchema(name=NAME, schema={"type_": AVRO, "definition": record("id", "size")})
    assert raw.GetSchema(name=NAME) == second
    assert raw.GetSchema(name=f"{NAME}@{first.revision_id}") == first
    revisions = raw.ListSchemaRevisions(name=NAME, view=2).schemas
    assert list(revisions) == [second, first]
    old, new = b'{"id": 1, "note": null}', b'{"id": 1, "size": 2, "note": null}'
    bind(raw)
    assert [publish_status(raw, data) for data in (old, new)] == [grpc.StatusCode.OK] * 2
    raw.UpdateTopic(
        topic={
            "name": TOPIC,
            "schema_settings": {"schema": NAME, "encoding": JSON, "first_revision_id": second.revision_id},
        },
        update_mask={"paths": ["schema_settings"]},
    )
    assert [publish_status(raw, data) for data in (old, new)] == [INVALID, grpc.StatusCode.OK]
    third = raw.RollbackSchema(name=NAME, revision_id=first.revision_id)
    assert third.definition == first.definition
    assert publish_status(raw, old) is grpc.StatusCode.OK
    assert raw.DeleteSchemaRevision(name=f"{NAME}@{first.revision_id}") == third
    assert status_of(raw.GetSchema, name=f"{NAME}@{first.revision_id}") is NOT_FOUND


def test_schemas_and_what_is_bound_to_them_survive_a_restart(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        made = make(raw, "id")
        bind(raw)
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        assert raw.GetSchema(name=NAME) == made
        assert publish_status(raw, b"nonsense") is INVALID


def test_a_topic_whose_schema_is_deleted_takes_nothing_until_it_is_freed(raw):
    make(raw, "id")
    bind(raw)
    raw.DeleteSchema(name=NAME)
    assert raw.GetTopic(topic=TOPIC).schema_settings.schema == "_deleted-schema_"
    assert publish_status(raw, b'{"id": 7, "note": null}') is INVALID
    raw.UpdateTopic(topic={"name": TOPIC}, update_mask={"paths": ["schema_settings"]})
    assert publish_status(raw, b"anything") is grpc.StatusCode.OK


def test_schemas_are_listed_in_pages_without_their_definitions_unless_asked_for(raw):
    for number in range(3):
        make(raw, "id", schema_id=f"schema-{number}")
    first = raw.ListSchemas(parent=PROJECT, page_size=2)
    rest = raw.ListSchemas(parent=PROJECT, page_size=2, page_token=first.next_page_token, view=2)
    assert [one.name[-1] for one in (*first.schemas, *rest.schemas)] == ["0", "1", "2"]
    assert [bool(one.definition) for one in (*first.schemas, *rest.schemas)] == [False, False, True]


def test_validation_without_keeping_anything(raw):
    schema = {"type_": AVRO, "definition": record("id")}
    raw.ValidateSchema(parent=PROJECT, schema=schema)
    good = {"parent": PROJECT, "message": b'{"id": 7, "note": null}', "encoding": JSON}
    raw.ValidateMessage(schema=schema, **good)
    assert status_of(raw.ValidateMessage, schema=schema, **{**good, "message": b"{}"}) is INVALID
    assert status_of(raw.ValidateMessage, schema=schema, **{**good, "encoding": 0}) is INVALID
    assert status_of(raw.ValidateMessage, name=NAME, **good) is NOT_FOUND
    make(raw, "id")
    raw.ValidateMessage(name=NAME, **good)


NO_SCHEMAS = ["", "nonsense", "5", "[]", '"string"', '{"type": "record"}', '{"type": "nope"}', "x" * 300_001]


@pytest.mark.parametrize("definition", NO_SCHEMAS, ids=range(len(NO_SCHEMAS)))
def test_definitions_that_are_none(raw, definition):
    schema = {"type_": AVRO, "definition": definition}
    assert status_of(raw.CreateSchema, parent=PROJECT, schema_id="order", schema=schema) is INVALID


PROTO = {"type_": 1, "definition": 'syntax = "proto3"; message A {}'}
CALLS_WITH_A_SCHEMA = {
    "CreateSchema": {"parent": PROJECT, "schema_id": "other", "schema": PROTO},
    "CommitSchema": {"name": NAME, "schema": PROTO},
    "ValidateSchema": {"parent": PROJECT, "schema": PROTO},
    "ValidateMessage": {"parent": PROJECT, "schema": PROTO, "message": b"", "encoding": BINARY},
}


@pytest.mark.parametrize(("call", "fields"), CALLS_WITH_A_SCHEMA.items(), ids=CALLS_WITH_A_SCHEMA)
def test_protocol_buffer_schemas_are_refused_and_the_refusal_says_what_to_use(raw, call, fields):
    """A schema that was taken and not enforced would be worse."""
    kept = make(raw, "id")
    with pytest.raises(grpc.RpcError) as refused:
        getattr(raw, call)(**fields)
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert refused.value.details() == "Protocol Buffer schemas are not supported: use an Avro schema"
    assert list(raw.ListSchemas(parent=PROJECT, view=2).schemas) == [kept], "and nothing was kept"


def test_what_is_refused(raw):
    call = raw.CreateSchema
    assert status_of(call, parent=PROJECT, schema_id="order", schema={"definition": record()}) is INVALID
    assert status_of(call, parent=PROJECT, schema_id="x", schema={"type_": AVRO, "definition": record()}) is INVALID
    only = make(raw, "id")
    assert status_of(make, raw=raw) is grpc.StatusCode.ALREADY_EXISTS
    gone = {"name": NAME, "revision_id": only.revision_id}
    assert status_of(raw.DeleteSchemaRevision, **gone) is grpc.StatusCode.FAILED_PRECONDITION
    settings = {"schema": f"{NAME}-2", "encoding": JSON}
    assert status_of(raw.CreateTopic, name=TOPIC, schema_settings=settings) is NOT_FOUND
    assert status_of(raw.CreateTopic, name=TOPIC, schema_settings={"schema": NAME}) is INVALID


def test_policies_are_kept_and_everything_is_allowed(raw):
    binding = {"role": "roles/pubsub.editor", "members": ["user:ann@example.com"]}
    kept = raw.SetIamPolicy(resource=TOPIC, policy={"bindings": [binding]})
    assert raw.GetIamPolicy(resource=TOPIC) == kept
    assert kept.bindings[0].role == "roles/pubsub.editor"
    assert not raw.GetIamPolicy(resource=SUBSCRIPTION).bindings
    wanted = ["pubsub.topics.publish", "pubsub.topics.delete"]
    assert list(raw.TestIamPermissions(resource=TOPIC, permissions=wanted).permissions) == wanted
    assert status_of(raw.GetIamPolicy, resource="") is INVALID
    members = {"bindings": [{"role": "r", "members": ["x" * 70_000]}]}
    assert status_of(raw.SetIamPolicy, resource=TOPIC, policy=members) is INVALID


def test_messages_that_would_crash_or_hang_a_reader_are_refused_and_others_are_served_meanwhile(
    raw, clients, monkeypatch
):
    """Nested without end; 10¹⁵ items without a byte; a record that doubles 40 times. Whoever may publish can send these."""
    double: dict[str, Any] = {"name": "D0", "type": "record", "fields": []}
    for level in range(1, 41):
        inner = [{"name": "a", "type": double}, {"name": "b", "type": f"D{level - 1}"}]
        double = {"name": f"D{level}", "type": "record", "fields": inner}
    fields = [
        {"name": "next", "type": ["null", "Evil"]},
        {"name": "nulls", "type": {"type": "array", "items": "null"}},
        {"name": "many", "type": ["null", double]},
    ]
    definition = json.dumps({"type": "record", "name": "Evil", "fields": fields})
    raw.CreateSchema(parent=PROJECT, schema_id="order", schema={"type_": AVRO, "definition": definition})
    bind(raw, BINARY)
    huge = b"\x80\x80\xe6\xfa\xb5\xab\xcd\x06"  # about 10¹⁵
    assert publish_status(raw, b"\x02" * 5000) is INVALID
    assert publish_status(raw, b"\x00" + huge + b"\x00\x00") is INVALID
    monkeypatch.setattr(schemas, "MAX_VALUES", 5 * schemas.MAX_VALUES)  # so that the check takes its time
    other, times = clients.raw(), [time.monotonic()]
    with ThreadPoolExecutor(1) as thread:
        slow = thread.submit(publish_status, raw, b"\x00\x00\x02")
        while not slow.done():
            other.GetTopic(topic=TOPIC)
            times.append(time.monotonic())
    assert slow.result() is INVALID
    assert max(after - before for before, after in pairwise(times)) < (times[-1] - times[0]) / 2
    assert publish_status(raw, b"\x00\x00\x00") is grpc.StatusCode.OK


def test_a_server_starts_with_a_schema_that_it_does_not_accept_any_more(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        make(raw, "id")
        bind(raw)
        revisions = json.dumps([{"name": NAME, "type": AVRO, "definition": "nonsense", "revision_id": "abc"}])
        server.run(server.engine.put_document(Document("schema", NAME, revisions)))
    with server_in_thread(url) as server:
        raw = server.clients.raw()
        assert raw.GetSchema(name=NAME).definition == "nonsense"
        assert publish_status(raw, b'{"id": 7, "note": null}') is INVALID
