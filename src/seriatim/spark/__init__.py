"""The data pipeline on Spark: disordered streams put back in order, at scale.

Packages; each imports only those above it:

``kernel/``      one micro-batch of one partition: Arrow and numpy, no Spark
``state/``       the state of a stream's partitions on disk, one version per batch; no Spark
``frames/``      puts tables and streams in order
``edge_nodes/``  puts the traffic of Sparkplug edge nodes in order
``topics/``      topics as ``format("seriatim")``
``pipeline/``    pipelines declared in a file, and tables of parquet files
``auditing/``    audits the order in which a table arrived, and writes a report
``local/``       a local session for our commands: finds Java, starts it, ends it

``column_roles.py``  which column is the key, the sequence, the arrival, the epoch and the payload
``tagged.py``        the tagged table that every way of ordering returns; ``ordered`` and ``ledger`` split it
``identity.py``      the query, batch and partition of the running task
``failures.py``      errors as Spark reports them, turned back into ours
``compatibility.py`` what differs between the supported versions of Spark
``settings.py``      recommended settings for a session
``state_admin.py``   inspects the state of a stream, and changes its partition count
"""

from __future__ import annotations

import typing
from importlib.machinery import PathFinder
from importlib.util import find_spec, module_from_spec

from seriatim.errors import FailedPrecondition
from seriatim.extras import require_extra
from seriatim.lazy import lazy_exports

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")


def _refuse_old_spark() -> None:
    """Check the version of Spark without importing it, which is slow: much of this package needs no Spark."""
    spark = find_spec("pyspark")
    found = spark and PathFinder.find_spec("pyspark.version", spark.submodule_search_locations)
    if not found or found.loader is None:
        return
    module = module_from_spec(found)
    found.loader.exec_module(module)
    if int(module.__version__.partition(".")[0]) < 4:
        raise FailedPrecondition(
            f"seriatim.spark needs Spark 4.0 or newer, and this is Spark {module.__version__}: before that there are no data "
            "sources in Python"
        )


_refuse_old_spark()

if typing.TYPE_CHECKING:
    from seriatim.spark.auditing.audit import audit, total
    from seriatim.spark.auditing.report import Audited, write_report
    from seriatim.spark.column_roles import ColumnRoles
    from seriatim.spark.edge_nodes.order_nodes import order_nodes
    from seriatim.spark.failures import unwrapped
    from seriatim.spark.frames.resequence import resequence, resequence_batch
    from seriatim.spark.identity import query_of
    from seriatim.spark.local.session import local_session
    from seriatim.spark.pipeline.parquet_table import write_batch
    from seriatim.spark.settings import configure
    from seriatim.spark.state_admin import held, repartition_state
    from seriatim.spark.tagged import ledger, ordered
    from seriatim.spark.topics.datasource import register

__all__ = [
    "Audited",
    "ColumnRoles",
    "audit",
    "configure",
    "held",
    "ledger",
    "local_session",
    "order_nodes",
    "ordered",
    "query_of",
    "register",
    "repartition_state",
    "resequence",
    "resequence_batch",
    "total",
    "unwrapped",
    "write_batch",
    "write_report",
]

# Names are imported on first use: the kernel works without Spark.
_HOMES = {
    "seriatim.spark.auditing.audit": ("audit", "total"),
    "seriatim.spark.auditing.report": ("Audited", "write_report"),
    "seriatim.spark.column_roles": ("ColumnRoles",),
    "seriatim.spark.edge_nodes.order_nodes": ("order_nodes",),
    "seriatim.spark.failures": ("unwrapped",),
    "seriatim.spark.frames.resequence": ("resequence", "resequence_batch"),
    "seriatim.spark.identity": ("query_of",),
    "seriatim.spark.local.session": ("local_session",),
    "seriatim.spark.pipeline.parquet_table": ("write_batch",),
    "seriatim.spark.settings": ("configure",),
    "seriatim.spark.state_admin": ("held", "repartition_state"),
    "seriatim.spark.tagged": ("ledger", "ordered"),
    "seriatim.spark.topics.datasource": ("register",),
}

if not typing.TYPE_CHECKING:  # type checkers use the imports above; a __getattr__ would make them accept any name
    __getattr__, __dir__ = lazy_exports(__name__, _HOMES)
