"""Loaded by every Python process of a driver that has this folder on its path: workers, and those that append to topics."""

from __future__ import annotations

from tests.spark.pipeline import crash_points

crash_points.install()
