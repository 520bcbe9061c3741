"""How many times as much damage is done in ``make soak``."""

from __future__ import annotations

import os

TIMES = 20 if "SOAK_IMAGES" in os.environ else 1
