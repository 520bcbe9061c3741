from __future__ import annotations

from tests.sparkplug.conftest import any_store, mosquitto, store

__all__ = ["any_store", "mosquitto", "store"]
