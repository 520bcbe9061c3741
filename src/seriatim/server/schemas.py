"""Schemas, which the messages of a topic must conform to.

Rules
    - A schema is a list of revisions, oldest first. Each has its own id; the last one is the current schema.
    - Avro is enforced. Protocol Buffer schemas are refused: they would need a compiler.
    - A topic with a schema accepts a message that conforms to one of the allowed revisions, tried from the newest, and adds the
      revision to its attributes. When the schema is deleted, the topic accepts no messages.
    - Each schema is a document in the store. This server owns the store, so its copy in memory is current. Changes of a schema
      are applied one after another.
    - The cost of a request is bounded: at most ``MAX_VALUES`` values are examined. Larger requests are checked in a thread, one
      after another, so that they do not delay the others.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from google.protobuf.empty_pb2 import Empty
from google.protobuf.json_format import MessageToDict, ParseDict

from seriatim.engine.broker import Broker, Document, Outgoing
from seriatim.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, NotSupported
from seriatim.log import logger
from seriatim.server.admission import NamedLocks
from seriatim.server.paging import page
from seriatim.wire.avro import AvroSchema
from seriatim.wire.avro_types import Budget, BudgetSpent
from seriatim.wire.names import Names
from seriatim.wire.resource_messages import from_document
from seriatim.wire.services import SCHEMAS, Schema, SchemaSettings, Topic
from seriatim.wire.times import set_seconds

KIND = "schema"
DELETED = "_deleted-schema_"
MAX_REVISIONS = 20
BASIC, FULL = 1, 2
JSON, BINARY = 1, 2
ENCODINGS = {JSON: "JSON", BINARY: "BINARY"}

MAX_VALUES = 1_000_000
"""The limit for all messages of a request together, counted once per revision that they are checked against."""

QUICK_VALUES, QUICK_BYTES = 10_000, 256 * 1024
"""Requests up to this size are checked immediately, in a few milliseconds."""


class InvalidDefinition:
    """A stored definition that this version does not accept: no message conforms to it."""

    def __init__(self, reason: InvalidArgument) -> None:
        self._reason = reason

    def check_binary(self, data: bytes, budget: Budget) -> None:  # noqa: ARG002
        raise self._reason

    check_json = check_binary


class Revision(NamedTuple):
    """A revision, as a message of the API and compiled."""

    message: Any
    avro: AvroSchema | InvalidDefinition

    @property
    def id(self) -> str:
        return str(self.message.revision_id)


class Schemas:
    """All schemas of a store, and the topics bound to them."""

    def __init__(self, broker: Broker, project: str) -> None:
        self._broker = broker
        self.names = Names("schemas", project)
        self._revisions: dict[str, list[Revision]] = {}
        self._bound: dict[str, Any] = {}  # settings, by the name of a topic in the store
        self._locks = NamedLocks()
        self._checking = asyncio.Lock()

    async def start(self) -> None:
        for document in await self._broker.list_documents(KIND):
            found = [ParseDict(one, Schema(), ignore_unknown_fields=True) for one in json.loads(document.text)]
            self._revisions[document.name] = [Revision(one, _stored(one)) for one in found]
        for info in await self._broker.list_topics():
            self.bind(info.name, from_document(Topic, info.options.resource).schema_settings)

    # -- topics ---------------------------------------------------------------------------------------------------------

    def bind(self, topic: str, settings: Any) -> None:
        """Apply the schema settings of a topic."""
        self._bound.pop(topic, None)
        if settings.schema:
            self._bound[topic] = settings

    def check_settings(self, settings: Any) -> None:
        """Raise unless the settings can be applied to a topic."""
        if settings == SchemaSettings():
            return
        if settings.encoding not in ENCODINGS:
            raise InvalidArgument("schema_settings need an encoding: JSON or BINARY")
        if settings.schema != DELETED:
            self._allowed(settings)

    def settings_of(self, settings: Any) -> Any:
        """Current settings: a schema that was deleted is named ``_deleted-schema_``."""
        is_named = settings.schema not in ("", DELETED)
        if is_named and self.names.in_store(settings.schema) not in self._revisions:
            settings.schema = DELETED
        return settings

    async def checked(self, topic: str, messages: list[Outgoing]) -> list[Outgoing]:
        """The messages with their schema attributes. Raises InvalidArgument unless all conform to the topic's schema."""
        settings = self._bound.get(topic)
        if settings is None:
            return messages
        try:
            revisions = self._allowed(settings)
        except NotFound:
            raise InvalidArgument("the schema of the topic was deleted: update its schema_settings") from None
        matches = await self.match([message.data for message in messages], settings.encoding, revisions)
        note = {
            "googclient_schemaencoding": ENCODINGS[settings.encoding],
            "googclient_schemaname": settings.schema,
        }
        return [
            message._replace(
                attributes={**(message.attributes or {}), **note, "googclient_schemarevisionid": revision.id}
            )
            for message, revision in zip(messages, matches, strict=True)
        ]

    async def match(self, messages: Sequence[bytes], encoding: int, revisions: Sequence[Revision]) -> list[Revision]:
        """The revision that each message conforms to. Raises InvalidArgument if one conforms to none."""
        if sum(map(len, messages)) <= QUICK_BYTES:
            try:
                return _match(messages, encoding, revisions, QUICK_VALUES)
            except BudgetSpent:
                pass
        async with self._checking:
            try:
                return await asyncio.to_thread(_match, messages, encoding, revisions, MAX_VALUES)
            except BudgetSpent:
                raise InvalidArgument(
                    f"the messages have more than {MAX_VALUES:,} values: publish fewer at once, or smaller ones"
                ) from None

    def _allowed(self, settings: Any) -> list[Revision]:
        """The revisions that a topic allows, the newest first."""
        revisions = self.revisions(self.names.in_store(settings.schema))
        first, last = settings.first_revision_id, settings.last_revision_id
        start = _index(revisions, first) if first else 0
        end = _index(revisions, last) if last else len(revisions) - 1
        if start > end:
            raise InvalidArgument("first_revision_id is newer than last_revision_id")
        return revisions[start : end + 1][::-1]

    # -- schemas --------------------------------------------------------------------------------------------------------

    def all(self) -> dict[str, list[Revision]]:
        return self._revisions

    def revisions(self, name: str) -> list[Revision]:
        try:
            return self._revisions[name]
        except KeyError:
            raise NotFound(f"schema {name!r} does not exist: create it first") from None

    async def create(self, name: str, revision: Revision) -> None:
        async with self._locks.hold(name):
            if name in self._revisions:
                raise AlreadyExists(f"schema {name!r} already exists: commit a revision of it, or choose another name")
            await self._put(name, [revision])

    async def change(self, name: str, change: Callable[[list[Revision]], list[Revision]]) -> list[Revision]:
        """Replace the revisions of a schema with the result of ``change``, and return them."""
        async with self._locks.hold(name):
            revisions = change(self.revisions(name))
            await self._put(name, revisions)
            return revisions

    async def delete(self, name: str) -> None:
        async with self._locks.hold(name):
            self.revisions(name)
            await self._broker.delete_document(KIND, name)
            del self._revisions[name]

    async def _put(self, name: str, revisions: list[Revision]) -> None:
        texts = [MessageToDict(one.message, preserving_proto_field_name=True) for one in revisions]
        await self._broker.put_document(Document(KIND, name, json.dumps(texts)))
        self._revisions[name] = revisions


def _index(revisions: Sequence[Revision], revision_id: str) -> int:
    for index, revision in enumerate(revisions):
        if revision.id == revision_id:
            return index
    raise NotFound(f"there is no revision {revision_id!r} of the schema")


def _stored(schema: Any) -> AvroSchema | InvalidDefinition:
    try:
        return AvroSchema(schema.definition)
    except InvalidArgument as error:
        logger.warning("no message conforms to revision %s of %s: %s", schema.revision_id, schema.name, error)
        return InvalidDefinition(error)


def _match(messages: Sequence[bytes], encoding: int, revisions: Sequence[Revision], values: int) -> list[Revision]:
    budget = Budget(values)
    return [_revision_of(data, encoding, revisions, budget) for data in messages]


def _revision_of(data: bytes, encoding: int, revisions: Sequence[Revision], budget: Budget) -> Revision:
    """The first revision that data conforms to. If there is none, raises the error of the newest."""
    refusals = []
    for revision in revisions:
        try:
            (revision.avro.check_json if encoding == JSON else revision.avro.check_binary)(data, budget)
        except InvalidArgument as error:
            refusals.append(error)
        else:
            return revision
    raise refusals[0]


def compiled(schema: Any) -> AvroSchema:
    """Compile a schema. Raises if messages can't be checked against it."""
    if schema.type_ == Schema.PROTOCOL_BUFFER:
        raise NotSupported("Protocol Buffer schemas are not supported: use an Avro schema")
    if schema.type_ != Schema.AVRO:
        raise InvalidArgument("a schema needs a type: AVRO")
    return AvroSchema(schema.definition)


class SchemaService:
    """One method for each of the API's, by the same name."""

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._names = schemas.names

    async def create_schema(self, request: Any) -> Any:
        name = self._names.in_store(f"{request.parent}/schemas/{request.schema_id}")
        revision = self._revision(name, request.schema)
        await self._schemas.create(name, revision)
        return revision.message

    async def get_schema(self, request: Any) -> Any:
        return _in_view(self._find(request.name), request.view or FULL)

    async def list_schemas(self, request: Any) -> Any:
        names, token = page(self._names.listed(request.parent, self._schemas.all()), request, self._names.of)
        found = [_in_view(self._schemas.revisions(name)[-1], request.view) for name in names]
        return SCHEMAS["ListSchemas"].response(schemas=found, next_page_token=token)

    async def list_schema_revisions(self, request: Any) -> Any:
        """The newest first."""
        revisions = self._schemas.revisions(self._names.in_store(request.name))[::-1]
        places, token = page([f"{place:04}" for place in range(len(revisions))], request, str)
        found = [_in_view(revisions[int(place)], request.view) for place in places]
        return SCHEMAS["ListSchemaRevisions"].response(schemas=found, next_page_token=token)

    async def commit_schema(self, request: Any) -> Any:
        name = self._names.in_store(request.name)
        revision = self._revision(name, request.schema)
        await self._schemas.change(name, lambda revisions: _with(revisions, revision))
        return revision.message

    async def rollback_schema(self, request: Any) -> Any:
        name = self._names.in_store(request.name)

        def roll_back(revisions: list[Revision]) -> list[Revision]:
            wanted = revisions[_index(revisions, request.revision_id)]
            return _with(revisions, self._revision(name, wanted.message))

        return (await self._schemas.change(name, roll_back))[-1].message

    async def delete_schema_revision(self, request: Any) -> Any:
        resource, _, revision_id = request.name.partition("@")
        name, revision_id = self._names.in_store(resource), revision_id or request.revision_id

        def leave_out(revisions: list[Revision]) -> list[Revision]:
            gone = _index(revisions, revision_id)
            if len(revisions) == 1:
                raise FailedPrecondition("the only revision of a schema can't be deleted: delete the schema")
            return revisions[:gone] + revisions[gone + 1 :]

        return (await self._schemas.change(name, leave_out))[-1].message

    async def delete_schema(self, request: Any) -> Any:
        await self._schemas.delete(self._names.in_store(request.name))
        return Empty()

    async def validate_schema(self, request: Any) -> Any:
        compiled(request.schema)
        return SCHEMAS["ValidateSchema"].response()

    async def validate_message(self, request: Any) -> Any:
        if request.encoding not in ENCODINGS:
            raise InvalidArgument("set the encoding of the message: JSON or BINARY")
        if request.WhichOneof("schema_spec") == "schema":
            revision = Revision(request.schema, compiled(request.schema))
        else:
            revision = self._find(request.name)
        await self._schemas.match([request.message], request.encoding, [revision])
        return SCHEMAS["ValidateMessage"].response()

    # -- how ------------------------------------------------------------------------------------------------------------

    def _find(self, resource: str) -> Revision:
        """A schema by its name: the revision after ``@``, or the current one."""
        schema, _, revision_id = resource.partition("@")
        revisions = self._schemas.revisions(self._names.in_store(schema))
        return revisions[_index(revisions, revision_id) if revision_id else -1]

    def _revision(self, name: str, schema: Any) -> Revision:
        made = Schema(name=self._names.of(name), type_=schema.type_, definition=schema.definition)
        made.revision_id = uuid.uuid4().hex[:8]
        set_seconds(made.revision_create_time, time.time())
        return Revision(made, compiled(schema))


def _with(revisions: list[Revision], revision: Revision) -> list[Revision]:
    if len(revisions) >= MAX_REVISIONS:
        raise FailedPrecondition(f"a schema has at most {MAX_REVISIONS} revisions: delete one")
    return [*revisions, revision]


def _in_view(revision: Revision, view: int) -> Any:
    """A revision, with its definition only in the full view."""
    if view == FULL:
        return revision.message
    brief = Schema()
    brief.CopyFrom(revision.message)
    brief.ClearField("definition")
    return brief
