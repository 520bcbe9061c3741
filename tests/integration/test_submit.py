"""``spark-submit`` of a declared pipeline to a standalone cluster, with a packed environment, as the how-to has it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
from pathlib import Path

import pytest

from seriatim.spark.local.java import find_java
from seriatim.spark.local.session import LOOPBACK
from tests.integration.readings import numbers_by_device
from tests.spark.cluster import SHORT_LIVED, SPARK_HOME, running_cluster
from tests.spark.pipeline.pipelines import rows_of
from tests.spark.topics.stored_topics import make_topics, stored
from tests.store.postgres.test_staging import waiting
from tests.test_docs import ROOT, blocks_of

PAGE = ROOT / "docs/how-to/run-on-a-cluster.md"
DECLARATION = """
[pipeline]
name = "readings"
checkpoint = "work/readings"
trigger = "available-now"

[source]
format = "json"
schema = "device STRING, n BIGINT, at DOUBLE"
options.path = "in"

[order]
key = "device"
sequence = "n"
arrival = "at"
start = 1

[[sink]]
format = "parquet"
options.path = "out"
"""


def packed_environment(folder: Path) -> tuple[Path, Path]:
    """An environment and its archive. Seriatim is in it; what is large is found where it is installed already."""
    environment, archive = folder / "environment", folder / "environment.tar.gz"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    packages = Path(sysconfig.get_path("purelib", vars={"base": str(environment)}))
    shutil.copytree(ROOT / "src" / "seriatim", packages / "seriatim", ignore=shutil.ignore_patterns("__pycache__"))
    installed = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "installed.pth").write_text("\n".join(installed))
    with tarfile.open(archive, "w:gz") as pack:
        pack.add(environment, ".")
    return environment, archive


@pytest.fixture
def pipeline(tmp_path) -> Path:
    (tmp_path / "in").mkdir()
    rows = [{"device": f"d{number % 3}", "n": number // 3 + 1, "at": -number} for number in reversed(range(30))]
    (tmp_path / "in" / "readings.json").write_text("\n".join(map(json.dumps, rows)))
    path = tmp_path / "pipeline.toml"
    path.write_text(DECLARATION)
    return path


IN_ORDER = {f"d{number}": list(range(1, 11)) for number in range(3)}


SMALL = {
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.driver.extraJavaOptions": SHORT_LIVED,
    "spark.executor.extraJavaOptions": SHORT_LIVED,
}


@pytest.mark.timeout(400)
def test_a_pipeline_is_submitted_with_a_packed_environment(tmp_path, pipeline):
    environment, archive = packed_environment(tmp_path)
    (program,) = [block for block in blocks_of(PAGE) if block.file]
    (tmp_path / "run_pipeline.py").write_text(program.body)
    settings = {
        **SMALL,
        "spark.driver.host": LOOPBACK,
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    options = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "JAVA_HOME": str(find_java().home),
        "SPARK_HOME": str(SPARK_HOME),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_DRIVER_PYTHON": str(environment / "bin" / "python"),
        "PYSPARK_PYTHON": "./environment/bin/python",
    }
    with running_cluster(tmp_path, workers=1) as cluster:
        submit = [str(SPARK_HOME / "bin" / "spark-submit"), "--master", cluster.master, *options]
        submit += ["--archives", f"{archive}#environment", "run_pipeline.py", str(pipeline)]
        done = subprocess.run(submit, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
        (executor,) = cluster.executors("worker-0")
        assert (executor / "environment" / "bin" / "python").exists()
    assert numbers_by_device(rows_of(tmp_path / "out")) == IN_ORDER


TOPIC = """
[[sink]]
format = "seriatim"
options = {{ url = "{url}", topic = "ordered" }}
"""


@pytest.mark.timeout(400)
def test_the_command_runs_a_pipeline_on_a_cluster(tmp_path, pipeline, postgres_url):
    make_topics(postgres_url, "ordered")
    with running_cluster(tmp_path, workers=1) as cluster:
        settings = {**SMALL, "spark.master": cluster.master}
        lines = [f'{name} = "{value}"' for name, value in settings.items()]
        pipeline.write_text("\n".join([DECLARATION, TOPIC.format(url=postgres_url), "[spark]", *lines]))
        command = [sys.executable, "-m", "seriatim", "pipeline", "run", str(pipeline)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-6000:]
    assert numbers_by_device(rows_of(tmp_path / "out")) == IN_ORDER
    messages = (json.loads(record.data) for record in stored(postgres_url, "ordered"))
    assert numbers_by_device(messages) == IN_ORDER
    assert waiting(postgres_url) == []
    binding = json.loads((tmp_path / "work" / "readings-state" / "binding.json").read_text())
    assert binding["partitions"] == 32
