"""The data pipeline on Spark: disordered streams put back in order, at scale.

In batch, in pure SQL:

``batch.py``       a whole table put in order: rows once and in order, and a ledger of everything else
``auditing.py``    what order a table arrived in, per key; ``report.py`` gathers what ``page.py`` and ``pictures.py`` show of it
``roles.py``       which columns mean what, and which rows nobody can judge
``session.py``     a local session for our commands, and ``java.py`` the Java that runs it

For streams:

``kernel.py``     one micro-batch of one partition: rows and state in, ordered rows, ledger and change out
``intake.py``     from an Arrow table to rows that can be judged
``work.py``       what is given to the two paths, and their verdict
``obstacles.py``  which keys can't take the fast path
``fast.py``       all keys at once, on one number line; ``findings.py`` puts it into a verdict
``slow.py``       key by key, with the core's resequencer
``output.py``     the tagged table
``partition.py``  what a partition knows, in columns, and the change that a batch makes to it; ``keyindex.py`` finds its keys
``state.py``      the state of the partitions on disk, one version a batch; ``version.py`` has the bytes, ``files.py`` the disks

Topics as ``format("seriatim")``:

``datasource.py`` what Spark asks first; ``source.py`` reads topics, ``sink.py`` writes them, ``place.py`` finds them
``messages.py``   columns of packs, and packs of columns; ``ranges.py`` divides a log
"""

from __future__ import annotations

import importlib
import typing

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")

if typing.TYPE_CHECKING:
    from seriatim.spark.auditing import audit, total
    from seriatim.spark.batch import ledger, ordered, resequence
    from seriatim.spark.datasource import register

__all__ = ["audit", "ledger", "ordered", "register", "resequence", "total"]

# Each name is loaded when it is first used: the kernel works without Spark.
_HOMES = {
    "audit": "seriatim.spark.auditing",
    "ledger": "seriatim.spark.batch",
    "ordered": "seriatim.spark.batch",
    "register": "seriatim.spark.datasource",
    "resequence": "seriatim.spark.batch",
    "total": "seriatim.spark.auditing",
}

if not typing.TYPE_CHECKING:  # type checkers see the imports above, and would take this to answer to any name

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module 'seriatim.spark' has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value
