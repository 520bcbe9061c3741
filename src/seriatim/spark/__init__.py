"""The data pipeline on Spark: disordered streams put back in order, at scale.

``partition.py``  what one partition of the stream knows, in columns, and the change that a batch makes to it
``kernel.py``     one micro-batch of one partition: rows and state in, ordered rows, ledger and change out
``state.py``      the state of the partitions on disk, one version a batch
"""

from __future__ import annotations

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")
