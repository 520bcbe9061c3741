"""Messages that arrive out of order, put back in order by the sequence numbers of their source: plain Python, no broker needed.

``Resequencer`` works on one key and ``ResequencerPool`` on many.
"""

from seriatim.core.resequencing.options import LedgerEntry, Released, ResequenceOptions, Start
from seriatim.core.resequencing.pool import ResequencerPool
from seriatim.core.resequencing.resequencer import Resequencer

__all__ = ["LedgerEntry", "Released", "ResequenceOptions", "Resequencer", "ResequencerPool", "Start"]
