"""The data pipeline on Spark: disordered streams put back in order, at scale.

``session.py``, ``java.py``  a local session for our commands, and the Java that runs it
"""

from __future__ import annotations

from seriatim.extras import require_extra

require_extra("spark", "numpy", "pyarrow", what="seriatim.spark")
