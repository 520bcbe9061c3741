"""Ordering guarantees: what they are called, and which of them a trace keeps."""

from seriatim.core.guarantees import Guarantee
from seriatim.core.traces import classify

__all__ = ["Guarantee", "classify"]
