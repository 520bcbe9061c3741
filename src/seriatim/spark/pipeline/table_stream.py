"""Delta and Iceberg tables as streams, without their connectors: reads the files that were added since the last version.

Rules
    - A version of a table is a set of files, and a batch has the files that are new in the latest version.
    - If a file is gone, rows were deleted, changed or compacted. A stream can't follow that, so it is refused.
    - Changes that the list of files does not show are refused, too: deletion vectors, and renamed columns.
    - A batch has everything that is new. The first one has the whole table.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import parquet
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from seriatim.errors import FailedPrecondition, InvalidArgument
from seriatim.spark.compatibility import (
    ReadAllAvailable,
    ReadLimit,
    SupportsTriggerAvailableNow,
    arrow_schema,
    with_position,
)
from seriatim.spark.pipeline.parquet_table import local_folder

NAME = "seriatim_table"


class TableFile(InputPartition):
    """A file of a table, and the columns whose values are in its entry and not in the file."""

    def __init__(self, path: str, constants: Mapping[str, Any]) -> None:
        super().__init__(path)
        self.path, self.constants = path, dict(constants)


class Versions(Protocol):
    """The versions of a table. A version has a name; '' is the one before the first."""

    def schema(self) -> StructType: ...

    def latest(self) -> str: ...

    def files(self, version: str) -> dict[str, TableFile]: ...


class DeltaVersions:
    """Those of a Delta table: numbers."""

    def __init__(self, options: Mapping[str, str]) -> None:
        if "path" not in options:
            raise InvalidArgument("a Delta table without Delta's connector is read from its path: name options.path")
        self._folder = local_folder(options["path"])

    def schema(self) -> StructType:
        from deltalake import DeltaTable

        return StructType.fromJson(json.loads(DeltaTable(self._folder).schema().to_json()))

    def latest(self) -> str:
        from deltalake import DeltaTable

        return str(DeltaTable(self._folder).version())

    def files(self, version: str) -> dict[str, TableFile]:
        from deltalake import DeltaTable

        table = DeltaTable(self._folder, version=int(version))
        if table.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
            raise _only_the_connector(str(self._folder), "columns that were given other names (column mapping)")
        if pa.table(table.deletion_vectors()).num_rows:
            raise _only_the_connector(str(self._folder), "rows that are marked as deleted (deletion vectors)")
        found = {}
        for add in pa.table(table.get_add_actions(flatten=True)).to_pylist():
            path = str(self._folder / unquote(add["path"]))
            values = {name.partition(".")[2]: value for name, value in add.items() if name.startswith("partition.")}
            found[path] = TableFile(path, values)
        return found


class IcebergVersions:
    """Those of an Iceberg table: its snapshots."""

    def __init__(self, options: Mapping[str, str]) -> None:
        from seriatim.spark.pipeline.iceberg_table import open_catalog

        if "table" not in options:
            raise InvalidArgument(
                "an Iceberg table without Iceberg's connector is read through its catalog: name options.table"
            )
        self._name = options["table"]
        self._catalog, self._in_catalog = open_catalog(self._name, options)

    def schema(self) -> StructType:
        return from_arrow_schema(self._table().schema().as_arrow())

    def latest(self) -> str:
        current = self._table().current_snapshot()
        return "" if current is None else str(current.snapshot_id)

    def files(self, version: str) -> dict[str, TableFile]:
        table = self._table()
        names: dict[int, set[str]] = {}
        for field in (field for schema in table.schemas().values() for field in schema.fields):
            names.setdefault(field.field_id, set()).add(field.name)
        if any(len(known) > 1 for known in names.values()):
            raise _only_the_connector(self._name, "columns that were given other names")
        planned = list(table.scan(snapshot_id=int(version)).plan_files())
        if any(task.delete_files for task in planned):
            raise _only_the_connector(self._name, "rows that are marked as deleted")
        return {task.file.file_path: TableFile(str(local_folder(task.file.file_path)), {}) for task in planned}

    def _table(self) -> Any:
        return self._catalog.load_table(self._in_catalog)


def _only_the_connector(table: str, what: str) -> FailedPrecondition:
    return FailedPrecondition(f"the table '{table}' has {what}: only the connector of its format can read it")


VERSIONS: dict[str, Callable[[Mapping[str, str]], Versions]] = {"delta": DeltaVersions, "iceberg": IcebergVersions}
Offset = dict[str, str]


class TableDataSource(DataSource):
    """An append-only table."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return VERSIONS[self.options["kind"]](self.options).schema()

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return TableStreamReader(self.options, schema)


@with_position
class TableStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what is added to a table, batch after batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options, self._schema = dict(options), schema
        self._where = options.get("table") or options["path"]
        self._last: str | None = None

    def _versions(self) -> Versions:
        """Opened where it is needed: tasks need none of it."""
        return VERSIONS[self._options["kind"]](self._options)

    def initialOffset(self) -> Offset:
        return {"version": ""}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        self._last = self._versions().latest()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:  # noqa: ARG002
        return {"version": self._versions().latest() if self._last is None else self._last}

    def partitions(self, start: Offset, end: Offset) -> list[TableFile]:
        if start == end:
            return []
        versions = self._versions()
        before, after = (versions.files(one["version"]) if one["version"] else {} for one in (start, end))
        if gone := before.keys() - after.keys():
            raise FailedPrecondition(
                f"{len(gone)} files were removed from the table '{self._where}' between the versions {start['version']} and "
                f"{end['version']}: rows were deleted, changed or compacted, and a stream reads only what is added. Start over "
                "with a new checkpoint"
            )
        return [after[path] for path in sorted(after.keys() - before.keys())]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, TableFile)
        wanted = arrow_schema(self._schema, "UTC")
        with parquet.ParquetFile(partition.path) as file:
            names = [name for name in wanted.names if name in file.schema_arrow.names]
            for batch in file.iter_batches(columns=names):
                yield pa.RecordBatch.from_arrays([_column(batch, field, partition) for field in wanted], schema=wanted)


def _column(batch: pa.RecordBatch, field: pa.Field, file: TableFile) -> pa.Array:
    if field.name in batch.schema.names:
        return batch.column(field.name).cast(field.type)
    return pa.repeat(pa.scalar(file.constants.get(field.name), field.type), batch.num_rows)
