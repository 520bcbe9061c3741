"""The data pipeline on Spark: disordered streams put back in order, at scale.

Packages, of which each imports only those before it:

``kernel/``      one micro-batch of one partition: Arrow and numpy, no Spark
``state/``       what the partitions of a stream know, on disk, one version a batch; no Spark
``frames/``      tables and streams put in order
``edge_nodes/``  Sparkplug's edge nodes, in the same ways
``topics/``      topics as ``format("seriatim")``
``pipeline/``    pipelines that are declared in a file, and tables of parquet files
``auditing/``    what order a table arrived in, and a page about it
``local/``       a local session for our commands, the Java that runs it, and how that ends

``column_roles.py``  which columns mean what
``tagged.py``        the tagged table that all ways of ordering give; ``ordered`` and ``ledger`` take it apart
``identity.py``      which query and which batch is at work
``failures.py``      errors as Spark reports them, turned back into ours
``state_admin.py``   the state of a stream: what waits, how much there is, another partition count
"""

from __future__ import annotations

import importlib
import typing

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")

if typing.TYPE_CHECKING:
    from seriatim.spark.auditing.audit import audit, total
    from seriatim.spark.edge_nodes.order_nodes import order_nodes
    from seriatim.spark.failures import unwrapped
    from seriatim.spark.frames.resequence import resequence
    from seriatim.spark.identity import query_of
    from seriatim.spark.pipeline.parquet_table import write_batch
    from seriatim.spark.state_admin import held, repartition_state
    from seriatim.spark.tagged import ledger, ordered
    from seriatim.spark.topics.datasource import register

__all__ = [
    "audit",
    "held",
    "ledger",
    "order_nodes",
    "ordered",
    "query_of",
    "register",
    "repartition_state",
    "resequence",
    "total",
    "unwrapped",
    "write_batch",
]

# Each name is loaded when it is first used: the kernel works without Spark.
_HOMES = {
    "audit": "seriatim.spark.auditing.audit",
    "held": "seriatim.spark.state_admin",
    "ledger": "seriatim.spark.tagged",
    "order_nodes": "seriatim.spark.edge_nodes.order_nodes",
    "ordered": "seriatim.spark.tagged",
    "query_of": "seriatim.spark.identity",
    "register": "seriatim.spark.topics.datasource",
    "repartition_state": "seriatim.spark.state_admin",
    "resequence": "seriatim.spark.frames.resequence",
    "total": "seriatim.spark.auditing.audit",
    "unwrapped": "seriatim.spark.failures",
    "write_batch": "seriatim.spark.pipeline.parquet_table",
}

if not typing.TYPE_CHECKING:  # type checkers see the imports above, and would take this to answer to any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'seriatim.spark' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
