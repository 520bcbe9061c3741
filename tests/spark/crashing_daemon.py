"""PySpark's daemon, whose workers are hit by what ``crash_points`` plans (``spark.python.daemon.module``)."""

from __future__ import annotations

from pyspark.daemon import manager

from tests.spark import crash_points

if __name__ == "__main__":
    crash_points.install()
    manager()
