"""The official Node client, installed once for this checkout."""

from __future__ import annotations

import fcntl
import subprocess
from pathlib import Path

from tests.needs import needs_program

FOLDER = Path(__file__).parent
HINT = "install Node.js 18 or newer"


def node_command(script: str) -> list[str]:
    """How a script of this folder is run. The test is skipped where there is no npm."""
    npm, node = needs_program("npm", HINT), needs_program("node", HINT)
    with (FOLDER / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes may run tests
        if not (FOLDER / "node_modules/@google-cloud/pubsub/package.json").exists():
            install = [npm, "install", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts"]
            subprocess.run(install, cwd=FOLDER, check=True, capture_output=True)
    return [node, str(FOLDER / script)]
