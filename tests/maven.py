"""Jars by Maven, for tests with the real parts: Spark's connectors, Apache Kafka.

Maven keeps them where it keeps everything, and knows where they come from: nothing here names a registry. What a set of
coordinates needs is asked once and noted in the user's cache folder. Where Maven is missing, the test says so (``needs.py``).
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from functools import cache
from hashlib import sha256
from pathlib import Path
from xml.sax.saxutils import escape

from tests.needs import lacking, needs_program

PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.6.0"
FETCH_TIMEOUT_S = 600
POM = """\
<project>
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>tests</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>{dependencies}</dependencies>
</project>
"""
DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version>{}</dependency>"
ALONE = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"


def spark_jars(*coordinates: str) -> str:
    """The value of ``spark.jars`` with exactly these jars: what else a connector needs is in Spark, or is listed with it."""
    return ",".join(jars(*coordinates, alone=True))


@cache
def jars(*coordinates: str, alone: bool = False) -> tuple[str, ...]:
    """The jars of these ``group:artifact:version``, ``alone`` or with all that they need."""
    pom = pom_of(coordinates, ALONE if alone else "")
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "seriatim-tests" / "jars"
    folder.mkdir(parents=True, exist_ok=True)
    noted = folder / f"{sha256(pom.encode()).hexdigest()[:16]}.classpath"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not noted.exists() or not all(map(os.path.exists, _noted_in(noted))):
            _fetch(pom, noted)
    return _noted_in(noted)


def _noted_in(classpath: Path) -> tuple[str, ...]:
    return tuple(classpath.read_text().split(os.pathsep))


def pom_of(coordinates: tuple[str, ...], exclusions: str) -> str:
    needed = [DEPENDENCY.format(*map(escape, one.split(":")), exclusions) for one in coordinates]
    return POM.format(dependencies="".join(needed))


def _fetch(pom: str, classpath: Path) -> None:
    maven = needs_program("mvn", hint="apt install maven")
    file = classpath.with_suffix(".xml")
    file.write_text(pom)
    command = [maven, "-B", "-q", "-f", str(file), f"{PLUGIN}:build-classpath", f"-Dmdep.outputFile={classpath}"]
    command.append("-DincludeScope=runtime")
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FETCH_TIMEOUT_S)
    if done.returncode != 0:
        lacking(f"Maven could not fetch what a test needs: {done.stdout[-2000:]}")
