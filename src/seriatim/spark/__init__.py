"""The data pipeline on Spark: disordered streams put back in order, at scale.

``kernel.py``     one micro-batch of one partition: rows and state in, ordered rows, ledger and change out
``intake.py``     from an Arrow table to rows that can be judged
``work.py``       what is given to the two paths, and their verdict
``obstacles.py``  which keys can't take the fast path
``fast.py``       all keys at once, on one number line; ``findings.py`` puts it into a verdict
``slow.py``       key by key, with the core's resequencer
``output.py``     the tagged table
``partition.py``  what a partition knows, in columns, and the change that a batch makes to it; ``keyindex.py`` finds its keys
``state.py``      the state of the partitions on disk, one version a batch; ``version.py`` has the bytes, ``files.py`` the disks
"""

from __future__ import annotations

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")
