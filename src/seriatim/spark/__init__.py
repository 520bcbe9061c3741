"""The data pipeline on Spark: disordered streams put back in order, at scale.

Putting a frame in order:

``resequencing.py`` the options, checked once, and who does it: one of the three
``batch.py``        a table, where nothing depends on the order of arrival: pure SQL
``static.py``       any other table: one sort, and the kernel
``streaming.py``    a stream: a shuffle by key, a sort (``arrival.py``), and the kernel with its state
``ticks.py``        brings batches to a stream when time alone has something to decide
``protocols.py``    what these ask of a kernel and of its state
``upkeep.py``       the state of a stream: what waits, how much there is, another partition count
``failures.py``     what Spark reports, in our words again
``preparation.py``  columns and order that the kernel needs

Sparkplug's edge nodes, in the same ways:

``nodes.py``        the options, checked once
``node_kernel.py``  one micro-batch of one partition, through the core's session machine
``node_ties.py``    the order of what arrived at the same time
``node_state.py``   what a partition knows of its nodes, and the change that a batch makes to it

Looking at tables, in pure SQL:

``auditing.py``    what order a table arrived in, per key; ``report.py`` gathers what ``page.py`` and ``pictures.py`` show of it
``roles.py``       which columns mean what, and which rows nobody can judge
``session.py``     a local session for our commands, ``java.py`` the Java that runs it, ``ending.py`` how that ends

The kernel:

``kernel.py``     one micro-batch of one partition: rows and state in, ordered rows, ledger and change out
``intake.py``     from an Arrow table to rows that can be judged
``work.py``       what is given to the two paths, and their verdict
``obstacles.py``  which keys can't take the fast path
``fast.py``       all keys at once, on one number line; ``findings.py`` puts it into a verdict
``slow.py``       key by key, with the core's resequencer
``output.py``     the tagged table
``partition.py``  what a partition knows, in columns, and the change that a batch makes to it; ``keyindex.py`` finds its keys
``state.py``      the state of the partitions on disk, one version a batch; ``version.py`` has the bytes, ``files.py`` the disks

Pipelines that are declared:

``pipeline.py``    a file becomes a pipeline, that can be explained and started
``declaration.py`` what the file may say; ``stages.py`` what such a pipeline can keep; ``runner.py`` the pipeline at work

Topics as ``format("seriatim")``:

``datasource.py`` what Spark asks first; ``source.py`` reads topics, ``sink.py`` writes them, ``place.py`` finds them
``messages.py``   columns of packs, and packs of columns; ``ranges.py`` divides a log

Tables:

``tables.py``     the batches of a query as parquet files, each written once
"""

from __future__ import annotations

import importlib
import typing

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")

if typing.TYPE_CHECKING:
    from seriatim.spark.auditing import audit, total
    from seriatim.spark.batch import ledger, ordered
    from seriatim.spark.datasource import register
    from seriatim.spark.failures import unwrapped
    from seriatim.spark.nodes import order_nodes
    from seriatim.spark.resequencing import resequence
    from seriatim.spark.sink import query_of
    from seriatim.spark.tables import write_batch
    from seriatim.spark.upkeep import held, repartition_state

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
    "audit": "seriatim.spark.auditing",
    "held": "seriatim.spark.upkeep",
    "ledger": "seriatim.spark.batch",
    "order_nodes": "seriatim.spark.nodes",
    "ordered": "seriatim.spark.batch",
    "query_of": "seriatim.spark.sink",
    "register": "seriatim.spark.datasource",
    "repartition_state": "seriatim.spark.upkeep",
    "resequence": "seriatim.spark.resequencing",
    "total": "seriatim.spark.auditing",
    "unwrapped": "seriatim.spark.failures",
    "write_batch": "seriatim.spark.tables",
}

if not typing.TYPE_CHECKING:  # type checkers see the imports above, and would take this to answer to any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'seriatim.spark' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
