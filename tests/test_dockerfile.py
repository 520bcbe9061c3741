"""The steps of the Dockerfile work, as far as they can be run without an engine: in folders instead of images.

``COPY`` copies, ``RUN`` runs, with an environment of its own for the final image, whose command serves in the end. Left out are
the making of a user, which would change this machine, and any address but the loopback.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
LEFT_OUT = {"useradd"}


class Step(NamedTuple):
    instruction: str
    words: str


def stages() -> list[list[Step]]:
    """The steps of each stage, without its FROM."""
    text = re.sub(r"\\\n", " ", (ROOT / "Dockerfile").read_text(encoding="utf-8"))
    steps = [Step(*line.split(" ", 1)) for line in text.splitlines() if line and not line.startswith("#")]
    starts = [index for index, step in enumerate(steps) if step.instruction == "FROM"]
    return [steps[start + 1 : end] for start, end in zip(starts, [*starts[1:], len(steps)], strict=True)]


class Image:
    """A folder in which the steps of a stage are run, with the programs of an environment first in the path."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder, self.programs = folder, programs
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, "PATH": path, "PIP_NO_COMPILE": "1"}

    def copy(self, words: str) -> None:
        *sources, target = words.split()
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, self.folder / target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, self.folder / target)

    def run(self, words: str, build: Image) -> None:
        """A mount from the build is replaced by the folder that it names."""
        command = words
        if mount := re.match(r"--mount=type=bind,from=build,source=/build/(\S+),target=(\S+) ", words):
            command = words[mount.end() :].replace(mount[2], str(build.folder / mount[1]))
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"


def empty_environment(folder: Path) -> Path:
    """The programs of an environment with nothing but a ``pip``: ours, which is quicker than installing one."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    pip = folder / "bin/pip"
    pip.write_text(f'#!/bin/sh\nexec {sys.executable} -m pip --python {folder}/bin/python "$@"\n')
    pip.chmod(0o755)
    return pip.parent


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> Image:
    build = Image(tmp_path_factory.mktemp("build"), Path(sys.executable).parent)
    final = Image(tmp_path_factory.mktemp("final"), empty_environment(tmp_path_factory.mktemp("environment")))
    for image, steps in zip((build, final), stages(), strict=True):
        for step in steps:
            if step.instruction == "COPY":
                image.copy(step.words)
            elif step.instruction == "RUN" and step.words.split()[0] not in LEFT_OUT:
                image.run(step.words, build)
    return final


def test_the_image_serves_pubsub_clients_and_ends_cleanly_when_it_is_stopped(image):
    (entrypoint,) = (json.loads(step.words) for step in stages()[-1] if step.instruction == "ENTRYPOINT")
    (arguments,) = (json.loads(step.words) for step in stages()[-1] if step.instruction == "CMD")
    command = [image.programs / entrypoint[0], *entrypoint[1:], *arguments, "--port", "0"]
    loopback = ["127.0.0.1" if word == "0.0.0.0" else word for word in command]
    assert loopback != command
    with subprocess.Popen(loopback, cwd=image.folder, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            assert re.search(r"127\.0\.0\.1:\d+", server.stdout.readline())
        finally:
            server.terminate()
        assert server.wait(timeout=30) == 0
    assert (image.folder / "seriatim.db").exists()


def test_the_image_has_the_locked_versions(image):
    listed = [image.programs / "pip", "list", "--format", "json"]
    found = json.loads(subprocess.run(listed, capture_output=True, text=True, check=True).stdout)
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", (ROOT / "requirements/dev.lock").read_text(), re.MULTILINE))
    versions = {package["name"].lower().replace("_", "-"): package["version"] for package in found}
    del versions["seriatim"]
    assert len(versions) > 20
    assert {name: version for name, version in versions.items() if locked.get(name) != version} == {}


def test_what_is_copied_is_let_through_to_the_engine():
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word for steps in stages() for step in steps if step.instruction == "COPY" for word in step.words.split()[:-1]
    }
    assert copied == allowed


def test_it_does_not_run_as_root():
    final = [step.instruction for step in stages()[-1]]
    assert "USER" in final
    assert final.index("USER") < final.index("ENTRYPOINT")
