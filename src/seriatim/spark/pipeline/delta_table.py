"""Delta Lake without its connector: tasks write parquet files, and the driver enters them in the table's log.

Rules
    1. A batch is one entry of the log, with an application transaction: the writer's name and the number of the batch. An entry
       appears whole, so either both are there or neither.
    2. The batches of a writer follow each other, so a batch whose number is not above the last one adds nothing.
    3. The number is looked up in the version of the table from which the entry is made. If another process has written the same
       batch since, the log refuses the entry: of two drivers that race, one fails.
    4. Files that were written but never added to the log are invisible to readers. ``VACUUM`` removes them, as for Delta's
       own writers.
    5. Tables that this writer does not support are refused: partitioned ones, and those with features that have rules for
       writers.

Several queries may write to one table. **A query that starts over with a new checkpoint counts as another writer**, and writes
its rows again: give it a new table.
"""

from __future__ import annotations

import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.transaction import AddAction, RemoveAction

from seriatim.errors import FailedPrecondition, InvalidArgument, StoreOwned
from seriatim.log import logger
from seriatim.spark.pipeline.parquet_table import local_folder
from seriatim.spark.pipeline.staging import StagedFile, stage, timestamps_in_microseconds
from seriatim.spark.state.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.types import StructType

LOG = "_delta_log"
MAX_WRITER_VERSION, FEATURES_VERSION = 2, 7
HARMLESS_FEATURES = frozenset({"appendOnly", "deletionVectors", "timestampNtz", "invariants", "v2Checkpoint"})
"""Features of tables to which rows can be appended as to any other."""


def write_batch(frame: DataFrame, path: str, batch: int, *, writer: str, rows: int) -> bool:
    """Write one batch of a query to the Delta table at ``path``, once; False if it had been written before."""
    files = LocalFiles(str(local_folder(path)))
    table = _opened(files, frame.schema)
    last = table.transaction_version(writer)
    if last is not None and batch <= last:
        logger.info("batch %d was written to the table '%s' before: nothing was added", batch, files.root)
        return False
    if rows:
        with timestamps_in_microseconds(frame.sparkSession):
            staged = stage(frame, files, f"batch-{batch:012d}-{uuid.uuid4().hex}", rows)
        files.sync([file.path for file in staged])
        _commit(table, staged, Transaction(writer, batch))
    return True


def _opened(files: LocalFiles, schema: StructType) -> DeltaTable:
    """The table as it is now; a new one where there is nothing. Only then is the folder listed: it grows with every batch."""
    root = files.root
    if not Path(root, LOG).is_dir():
        if present := files.names(""):
            raise FailedPrecondition(
                f"'{root}' is not a Delta table, and there is {present[0]!r} in it: name a new folder"
            )
        DeltaTable.create(root, _as_delta(schema), mode="ignore")
    table = DeltaTable(root)
    _require_plain(table, root)
    _require_columns(table, root, schema)
    return table


def _as_delta(schema: StructType) -> Schema:
    """The same columns: Delta writes a schema as Spark does, and lacks some types."""
    try:
        found = Schema.from_json(schema.json())
    except (DeltaError, ValueError) as error:
        raise InvalidArgument(f"these columns can't be those of a Delta table: {error}") from error
    if _columns(found.to_json()) != (own := _columns(schema.json())):
        raise InvalidArgument(f"these columns can't be those of a Delta table: {_listed(own)}")
    return found


def _require_plain(table: DeltaTable, root: str) -> None:
    protocol = table.protocol()
    if MAX_WRITER_VERSION < protocol.min_writer_version < FEATURES_VERSION:
        features = {f"writer version {protocol.min_writer_version}"}
    else:
        features = set(protocol.writer_features or ()) - HARMLESS_FEATURES
    if table.metadata().partition_columns:
        features.add("partitions")
    if features:
        raise FailedPrecondition(
            f"the Delta table '{root}' has {', '.join(sorted(features))}: only Delta's own connector can write to it; add "
            "that to the session"
        )


def _require_columns(table: DeltaTable, root: str, schema: StructType) -> None:
    there, own = (_columns(text) for text in (table.schema().to_json(), schema.json()))
    if there != own:
        raise FailedPrecondition(
            f"the table '{root}' has the columns {_listed(there)}, and this batch has {_listed(own)}: write to a new table, or "
            "change its columns first"
        )


def _columns(schema: str) -> dict[str, object]:
    return {field["name"]: _without_nullability(field["type"]) for field in json.loads(schema)["fields"]}


def _without_nullability(kind: object) -> object:
    """A type as it counts here: whether values may be missing does not matter to what is read."""
    if isinstance(kind, dict):
        without = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _without_nullability(value) for name, value in kind.items() if name not in without}
    return [_without_nullability(part) for part in kind] if isinstance(kind, list) else kind


def _listed(columns: dict[str, object]) -> str:
    return ", ".join(f"{name} {kind if isinstance(kind, str) else json.dumps(kind)}" for name, kind in columns.items())


def _commit(table: DeltaTable, staged: list[StagedFile], transaction: Transaction) -> None:
    now = round(time.time() * 1000)
    adds: list[AddAction | RemoveAction] = [
        AddAction(file.path, file.size, {}, now, data_change=True, stats=json.dumps({"numRecords": file.rows}))
        for file in staged
    ]
    try:
        table.create_write_transaction(
            adds, "append", table.schema(), commit_properties=CommitProperties(app_transactions=[transaction])
        )
    except CommitFailedError as error:
        raise StoreOwned(
            f"another process changed the table '{table.table_uri}' while batch {transaction.version} was written ({error}): "
            "nothing was added. If a second driver runs with the same checkpoint, stop it"
        ) from error
