"""Iceberg without its connector: tasks write parquet files, and the driver adds them to the table through its catalog.

Rules
    1. A batch is one commit: the files, and a property of the table with the number of the batch, named after the writer.
       Unlike the summary of a snapshot, a property outlives the expiry of snapshots.
    2. The batches of a writer follow each other, so a batch whose number is not above the property adds nothing.
    3. pyiceberg's own retry is turned off: it would add the files to a newer version of the table, even if that has the
       batch. After a commit of another writer the property is checked again.
    4. If a table has rows, and no property says which batches of the writer are among them, a batch is refused, unless it is
       the first one.
    5. Files that were written but never added are invisible to readers. Iceberg's ``remove_orphan_files`` removes them.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.table import Table

from seriatim.errors import FailedPrecondition, InvalidArgument, StoreBusy
from seriatim.log import logger
from seriatim.spark.compatibility import arrow_schema
from seriatim.spark.pipeline.parquet_table import local_folder
from seriatim.spark.pipeline.staging import stage, timestamps_in_microseconds
from seriatim.spark.state.files import LocalFiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

CATALOG = "catalog."
"""How the options begin that describe a catalog."""
RETRIES = "commit.retry.num-retries"
MAX_ATTEMPTS = 5
"""How often a batch is added anew because somebody else changed the table meanwhile."""


def open_catalog(name: str, options: Mapping[str, str]) -> tuple[Catalog, str]:
    """The catalog of ``catalog.schema.table``, as options or pyiceberg's settings describe it, and the rest of the name."""
    catalog, _, table = name.partition(".")
    if "." not in table:
        raise InvalidArgument(f"'{name}' is not the name of a table: write catalog.schema.table")
    settings = {key.removeprefix(CATALOG): value for key, value in options.items() if key.startswith(CATALOG)}
    try:
        return load_catalog(catalog, **settings), table
    except ValueError as error:
        raise FailedPrecondition(
            f"the catalog '{catalog}' is not known: describe it with options catalog.type, catalog.uri and so on, or in "
            f"pyiceberg's own settings ({error})"
        ) from error


def write_batch(frame: DataFrame, options: Mapping[str, str], batch: int, *, writer: str, rows: int) -> bool:
    """Write one batch of a query to the table ``options['table']``, once; False if it had been written before."""
    catalog, name = open_catalog(options["table"], options)
    table = _opened(catalog, name, frame)
    noted = f"seriatim.batch.{writer}"
    if _is_there(table, noted, batch):
        return False
    files = LocalFiles(str(local_folder(table.location())))
    paths = []
    if rows:
        with timestamps_in_microseconds(frame.sparkSession):
            staged = stage(frame, files, f"data/batch-{batch:012d}-{uuid.uuid4().hex}", rows)
        paths = [file.path for file in staged]
        files.sync(paths)
    elif noted in table.properties:
        return True
    for _ in range(MAX_ATTEMPTS):
        try:
            _commit(table, [f"{table.location()}/{path}" for path in paths], {noted: str(batch)})
        except CommitFailedException:
            table = catalog.load_table(name)
            if _is_there(table, noted, batch):
                return False
        else:
            return True
    raise StoreBusy(f"the table {options['table']} was changed {MAX_ATTEMPTS} times meanwhile: start the query again")


def _opened(catalog: Catalog, name: str, frame: DataFrame) -> Table:
    """The table as it is now; a new one where there is none."""
    try:
        table = catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        try:
            return catalog.create_table_if_not_exists(name, arrow_schema(frame.schema, "UTC"))
        except (UnsupportedPyArrowTypeException, ValueError) as error:
            raise InvalidArgument(f"these columns can't be those of an Iceberg table: {error}") from error
    if not table.spec().is_unpartitioned():
        raise FailedPrecondition(
            f"the table {name} is partitioned: only Iceberg's own connector can write to it; add that to the session"
        )
    return table


def _is_there(table: Table, noted: str, batch: int) -> bool:
    last = table.properties.get(noted)
    if last is None and batch > 0 and table.current_snapshot() is not None:
        raise FailedPrecondition(
            f"the table {'.'.join(table.name())} has rows, and nothing says whether batch {batch} is among them: its property "
            f"'{noted}' is missing. Set it to the number of the last batch that is there, or write to a new table"
        )
    if last is None or batch > int(last):
        return False
    logger.info("batch %d was written to the table %s before: nothing was added", batch, ".".join(table.name()))
    return True


def _commit(table: Table, paths: list[str], properties: dict[str, str]) -> None:
    table.metadata.properties[RETRIES] = "0"  # of this copy alone: other writers may retry
    with table.transaction() as transaction:
        transaction.set_properties(properties)
        if paths:
            transaction.add_files(paths, check_duplicate_files=False)
