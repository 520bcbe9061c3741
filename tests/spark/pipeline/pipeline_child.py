"""``seriatim pipeline run``, hit by what ``crash_points`` plans: python -m tests.spark.pipeline.pipeline_child PIPELINE."""

from __future__ import annotations

import os
import sys

from seriatim.cli.main import cli
from tests.spark.pipeline import crash_points

if __name__ == "__main__":
    os.environ[crash_points.GROUP] = str(os.getpgid(0))
    crash_points.install_in_driver()
    cli.main(["pipeline", "run", *sys.argv[1:]], prog_name="seriatim")
