"""What a user gets: the wheel, in an empty environment, without any extra."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

import seriatim
from seriatim.extras import EXTRAS
from tests.test_repository import repository_files

ROOT = Path(__file__).parent.parent


def run(*command: str | Path, cwd: Path | None = None, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def programs(wheel, tmp_path_factory) -> Path:
    """The folder of programs of an environment that holds the wheel and its own dependencies, at the locked versions."""
    folder = tmp_path_factory.mktemp("environment")
    locked = (ROOT / "requirements/dev.lock").read_text()
    # pip refuses hashes in constraints, because the wheel that was just built has none.
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(re.findall(r"^[a-z0-9-]+==[^\\\n]+", locked, re.MULTILINE)))
    venv = folder / "venv"
    run(sys.executable, "-m", "venv", "--without-pip", venv)
    python = venv / "bin/python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--constraint", constraints, wheel)
    return venv / "bin"


def test_the_wheel_says_that_it_is_typed_and_under_which_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "seriatim/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    tops = {name.split("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert tops == {"seriatim", f"seriatim-{seriatim.__version__}.dist-info"}


def test_the_wheel_holds_the_sql_of_the_stores(wheel):
    written = {f"seriatim/{path.relative_to(ROOT / 'src/seriatim')}" for path in ROOT.glob("src/seriatim/**/*.sql")}
    assert "seriatim/store/sqlite/queries.sql" in written
    assert written <= set(zipfile.ZipFile(wheel).namelist())


def test_the_wheel_holds_the_pipeline_of_the_demo(wheel):
    assert "seriatim/demo/pipeline.toml" in zipfile.ZipFile(wheel).namelist()


def test_the_metadata_lists_the_extras_and_a_light_base(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = message_from_string(archive.read(f"seriatim-{seriatim.__version__}.dist-info/METADATA").decode())
    assert set(metadata.get_all("Provides-Extra", [])) == set(EXTRAS)
    base = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    assert [re.split(r"\W", need)[0] for need in base] == ["click", "rich"]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_metadata_says_where_the_project_is_found(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = message_from_string(archive.read(f"seriatim-{seriatim.__version__}.dist-info/METADATA").decode())
    urls = dict(entry.split(", ", 1) for entry in metadata.get_all("Project-URL", []))
    assert set(urls) == {"Homepage", "Documentation", "Changelog", "Issues"}
    assert all(url.startswith((urls["Homepage"], urls["Documentation"])) for url in urls.values())


def test_the_source_archive_holds_the_whole_repository_and_so_can_run_its_own_tests(tmp_path):
    run(sys.executable, "-m", "hatchling", "build", "--target", "sdist", "--directory", tmp_path, cwd=ROOT)
    with tarfile.open(next(tmp_path.glob("*.tar.gz"))) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    assert packed - {"PKG-INFO"} == {str(path.relative_to(ROOT)) for path in repository_files()}


def test_the_command_line_works_without_extras(programs):
    assert "Usage: seriatim" in run(programs / "seriatim", "--help").stdout
    version = f"seriatim, version {seriatim.__version__}\n"
    assert run(programs / "seriatim", "--version").stdout == version
    assert run(programs / "python", "-m", "seriatim", "--version").stdout == version


def test_the_program_of_the_readme_runs_twice_without_extras(programs, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    program = re.search(r"```python\n(.*?)```\n\n```text\n(.*?)```", readme, re.DOTALL)
    assert program is not None
    (tmp_path / "first.py").write_text(program[1])
    for _ in range(2):
        assert run(programs / "python", "first.py", cwd=tmp_path).stdout == program[2]
    store = re.search(r"sqlite:///\S+?(?=\")", program[1])
    assert store is not None
    listed = run(programs / "seriatim", "topics", "list", "--store", store[0], cwd=tmp_path).stdout
    assert listed.splitlines()[1].startswith("orders")


def test_a_trace_is_audited_without_extras(programs, tmp_path):
    (tmp_path / "trace.csv").write_text("key,seq\na,1\na,2\n")
    command = (
        programs / "seriatim",
        "trace",
        "audit",
        "trace.csv",
        "--key",
        "key",
        "--seq",
        "seq",
        "--expect",
        "absolute",
    )
    assert "held for every key: absolute" in run(*command, cwd=tmp_path).stdout


def test_the_demo_runs_without_extras_and_says_what_would_bring_the_rest(programs, tmp_path):
    done = run(programs / "seriatim", "demo", "--quick", cwd=tmp_path)
    assert "order per device          none           strict" in done.stdout
    assert "pip install 'seriatim[spark]'" in done.stderr


def test_a_parquet_file_names_the_extra_that_it_needs(programs, tmp_path):
    (tmp_path / "x.parquet").touch()
    done = run(
        programs / "seriatim", "trace", "audit", "x.parquet", "--key", "k", "--seq", "s", cwd=tmp_path, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "error: audit of a parquet file needs the extra 'spark': pip install 'seriatim[spark]'\n"
