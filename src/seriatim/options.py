"""The choices that options offer, as enumerations. Each may also be given as text, such as ``on_exhausted="pause"``."""

from seriatim.core.lanes.types import Keep, OnExhausted, ReleaseAfter, RetryMode

__all__ = ["Keep", "OnExhausted", "ReleaseAfter", "RetryMode"]
