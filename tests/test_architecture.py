"""The tree is the architecture: who may import whom, checked on the source of every module.

Imports inside functions and under ``TYPE_CHECKING`` count as well for directions: a dependency is one however it is written.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent / "src"

# What every layer but the core may use besides its own modules.
BASE = {"errors", "log", "extras"}
FRONT = {"engine", "core"} | BASE

MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "log": {"errors"},
    "extras": {"errors"},
    "lazy": set(),
    "config": {"errors"},
    "core": {"errors"},
    "store.base": {"core"} | BASE,
    "store": {"store.base", "core"} | BASE,
    # Of the stores an engine knows the seam, and the functions that know addresses.
    "engine": {
        "core",
        "store.base",
        "store.open_store",
        "store.store_file",
        "store.absolute_url",
        "store.outbox_file",
    }
    | BASE,
    "wire": {"core"} | BASE,
    "telemetry": FRONT,
    "kafka": FRONT,
    "client": FRONT | {"wire", "telemetry", "kafka"},
    "server": FRONT | {"wire", "telemetry"},
    "sparkplug": FRONT,
    "console": FRONT,
    "pipes": FRONT,
    "spark": FRONT | {"lazy", "store", "store.base", "store.open_store", "store.store_file"},
    # The loop with virtual time asks the engine whether a writer thread is at work; the faulty route is a route.
    "testing": {"errors", "lazy", "core", "store.base", "engine", "pipes", "testing.emulator"},
    # The emulator is the server, and the fixtures open clients.
    "testing.emulator": {"engine", "client", "server"} | BASE,
    "testing.pytest_plugin": {"client", "testing", "testing.emulator"},
    # All of it at work: the clients on both sides of the pipeline.
    "demo": {"client", "spark", "testing", "core"} | BASE,
    "(door)": {"errors", "lazy", "core", "client"},
    # One level below the door.
    "blocking": {"client"},
    "filters": {"core"},
    "guarantees": {"core"},
    "options": {"core"},
    "outbox": {"core", "errors"},
    "resequencing": {"core"},
    "__main__": {"cli"},
}
ANYTHING = {"cli"}

CORE_MAY_IMPORT_STANDARD = {
    *("__future__", "abc", "array", "bisect", "collections", "dataclasses", "enum", "fractions"),
    *("functools", "hashlib", "heapq", "itertools", "math", "operator", "re", "struct", "typing", "zlib"),
}


# Inside the core: what all machines use, and which machines build on which others.
CORE_SHARED = {
    *(
        "deadlines",
        "filters",
        "guarantees",
        "ranges",
        "sequence",
        "text_checks",
        "traces",
        "transition_table",
        "validation",
    ),
}
CORE_MAY_IMPORT: dict[str, set[str]] = {
    **dict.fromkeys(CORE_SHARED, CORE_SHARED),
    "lanes": CORE_SHARED,
    "publishing": CORE_SHARED,
    "resequencing": CORE_SHARED,
    "pipes": {"resequencing"} | CORE_SHARED,
    "sparkplug": {"resequencing"} | CORE_SHARED,
}

# Inside Spark's part of the tree: which of its packages and modules each may import.
SPARK_DATA = {"column_roles", "tagged"}
SPARK_MAY_IMPORT: dict[str, set[str]] = {
    "column_roles": set(),
    "tagged": set(),
    "identity": set(),
    "failures": set(),
    "compatibility": set(),
    "settings": set(),
    "kernel": SPARK_DATA,
    "state": {"kernel"} | SPARK_DATA,
    "frames": {"state", "kernel", "identity", "compatibility"} | SPARK_DATA,
    "edge_nodes": {"frames", "kernel"} | SPARK_DATA,
    "state_admin": {"edge_nodes", "frames", "state", "kernel", "compatibility"},
    "topics": {"identity", "compatibility"},
    "pipeline": {"frames", "kernel", "state", "state_admin", "topics", "failures", "identity", "compatibility"}
    | SPARK_DATA,
    "auditing": {"frames", "kernel"} | SPARK_DATA,
    "local": {"settings"},
}
WITHOUT_PYSPARK = {"kernel", "state", "column_roles"}
WITH_BROKER_OR_STORE = {"topics", "pipeline"}


class Import(NamedTuple):
    target: str
    when_loaded: bool
    """False inside a function or under TYPE_CHECKING."""


def imports_of(source: str) -> Iterator[Import]:
    yield from _imports_below(ast.parse(source), when_loaded=True)


def _imports_below(node: ast.AST, *, when_loaded: bool) -> Iterator[Import]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(name.name, when_loaded) for name in child.names)
        elif isinstance(child, ast.ImportFrom):
            base = "." * child.level + (child.module or "")
            yield from (Import(f"{base}.{name.name}", when_loaded) for name in child.names)
        else:
            delayed = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) or _is_type_checking(child)
            yield from _imports_below(child, when_loaded=when_loaded and not delayed)


def _is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def layer_of(module: str) -> str:
    """The part of the tree that a module (or a name in it) belongs to."""
    parts = module.split(".")[1:]
    own = ("base", "open_store", "store_file", "absolute_url", "outbox_file")
    if parts[:2] in (*(["store", name] for name in own), ["testing", "emulator"], ["testing", "pytest_plugin"]):
        return ".".join(parts[:2])
    known = MAY_IMPORT.keys() | ANYTHING
    return parts[0] if parts and parts[0] in known else "(door)"


def violations(module: str, source: str) -> list[str]:
    """What ``module`` imports although its layer may not."""
    layer = layer_of(module)
    return [
        f"{module} imports {found.target}: {problem}"
        for found in imports_of(source)
        if (problem := _problem(layer, found.target))
    ]


def _problem(layer: str, target: str) -> str | None:
    if target.startswith("."):
        return "write it as an absolute import"
    package = target.split(".", maxsplit=1)[0]
    if package != "seriatim":
        forbidden = layer == "core" and package not in CORE_MAY_IMPORT_STANDARD
        return "core may import only a few pure modules of the standard library" if forbidden else None
    allowed = layer in ANYTHING or layer_of(target) in MAY_IMPORT[layer] | {layer}
    return None if allowed else f"{layer} may import {', '.join(sorted(MAY_IMPORT[layer])) or 'nothing'}"


def spark_violations(module: str, source: str) -> list[str]:
    """What ``module`` imports although its part of Spark's tree may not."""
    part = module.split(".")[2]
    return [
        f"{module} imports {found.target}: {problem}"
        for found in imports_of(source)
        if (problem := _spark_problem(part, found.target.split(".")))
    ]


def _spark_problem(part: str, target: list[str]) -> str | None:
    if target[0] == "pyspark" and part in WITHOUT_PYSPARK:
        return f"{part} works without Spark"
    if target[0] != "seriatim":
        return None
    if target[1] in {"engine", "store"} and part not in WITH_BROKER_OR_STORE:
        return f"{part} runs in executors, which need neither a broker nor a store"
    if target[1] == "spark" and target[2] not in SPARK_MAY_IMPORT[part] | {part}:
        return f"{part} may import {', '.join(sorted(SPARK_MAY_IMPORT[part])) or 'nothing of Spark'}"
    return None


def core_violations(module: str, source: str) -> list[str]:
    """What ``module`` imports although its part of the core may not."""
    part = module.split(".")[2]
    inside = [found.target for found in imports_of(source) if found.target.startswith("seriatim.core.")]
    return [
        f"{module} imports {target}: {part} may import {', '.join(sorted(CORE_MAY_IMPORT[part]))}"
        for target in inside
        if target.split(".")[2] not in CORE_MAY_IMPORT[part] | {part}
    ]


def find_cycle(sources: dict[str, str]) -> list[str] | None:
    """The modules of an import cycle; only imports that run while a module is loaded can close one."""
    graph = {
        module: {_module_of(found.target, sources) for found in imports_of(source) if found.when_loaded}
        - {module, None}
        for module, source in sources.items()
    }
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return None


def _module_of(target: str, sources: dict[str, str]) -> str | None:
    while target and target not in sources:
        target = target.rpartition(".")[0]
    return target or None


def read_tree() -> dict[str, str]:
    def name(path: Path) -> str:
        parts = path.relative_to(ROOT).with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    return {name(path): path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}


TREE = read_tree()


@pytest.mark.parametrize("module", TREE)
def test_a_module_imports_only_what_its_layer_may(module):
    assert violations(module, TREE[module]) == []


@pytest.mark.parametrize("module", TREE)
def test_every_module_belongs_to_a_layer_of_the_design(module):
    assert module == "seriatim" or layer_of(module) != "(door)"


@pytest.mark.parametrize("module", [name for name in TREE if name.startswith("seriatim.core.")])
def test_a_module_of_the_core_imports_only_what_its_package_may(module):
    assert core_violations(module, TREE[module]) == []


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("seriatim.core.lanes.lane", "from seriatim.core.resequencing.pool import ResequencerPool"),
        ("seriatim.core.resequencing.gaps", "from seriatim.core.pipes.protocol import PipeOptions"),
        ("seriatim.core.sequence", "from seriatim.core.lanes import lane"),
        ("seriatim.core.sparkplug.rebirth", "def late():\n    import seriatim.core.publishing.flow"),
    ],
)
def test_a_forbidden_import_inside_the_core_is_found(module, source):
    assert core_violations(module, source)


@pytest.mark.parametrize("module", [name for name in TREE if name.startswith("seriatim.spark.")])
def test_a_module_of_spark_imports_only_what_its_package_may(module):
    assert spark_violations(module, TREE[module]) == []


def test_no_import_cycle():
    assert find_cycle(TREE) is None


def test_listing_the_commands_loads_no_command_no_engine_and_nothing_that_needs_an_extra():
    """Lazy on purpose: the command line must answer at once, and work without any extra."""
    program = "import sys, seriatim.cli.main; print(*(name for name in sys.modules if name.startswith('seriatim.')))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert {layer_of(name) for name in loaded} == {"cli", "config", "errors", "extras", "lazy", "log"}
    assert "seriatim.cli.trace.audit" not in loaded
    assert "seriatim.cli.topics" not in loaded


def loaded_with(*modules: str, parts: int = 1) -> set[str]:
    """The packages that a program has loaded when it has imported some modules."""
    program = (
        f"import sys, {', '.join(modules)}; print(*{{'.'.join(name.split('.')[:{parts}]) for name in sys.modules}})"
    )
    return set(
        subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    )


def test_kernels_state_and_declared_pipelines_need_no_spark():
    assert "pyspark" not in loaded_with(
        "seriatim.spark.state.batch_versions", "seriatim.spark.edge_nodes.kernel", "seriatim.spark.pipeline"
    )


def test_putting_a_table_in_order_loads_nothing_that_only_streams_need():
    loaded = loaded_with("seriatim.spark.frames.dispatch", parts=4)
    assert "seriatim.spark.frames.dispatch" in loaded
    assert not {"seriatim.spark.frames.stream", "seriatim.spark.frames.ticks"} & loaded
    assert not [name for name in loaded if name.startswith("seriatim.spark.state")]


def test_the_tasks_of_a_stream_load_no_broker_and_no_store():
    loaded = loaded_with("seriatim.spark.frames.stream", "seriatim.spark.edge_nodes.order_nodes", parts=2)
    assert not {"seriatim.engine", "seriatim.store", "seriatim.client"} & loaded


def test_the_tasks_of_a_topic_load_no_engine():
    """Only the driver asks the owner of the store; an engine would make every worker of Spark start slower."""
    loaded = loaded_with("seriatim.spark.topics.datasource", parts=3)
    assert not {"seriatim.engine.engine", "seriatim.engine.connect", "seriatim.store.sqlite.store"} & loaded


def test_the_public_door_needs_no_extra():
    assert not {"numpy", "pyarrow", "pyspark", "grpc", "google", "fastavro"} & loaded_with("seriatim")


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("seriatim.core.lanes.lane", "import time"),
        ("seriatim.core.lanes.lane", "import os.path"),
        ("seriatim.core.lanes.lane", "from random import Random"),
        ("seriatim.core.lanes.lane", "def wait():\n    import asyncio"),
        ("seriatim.core.lanes.lane", "class Lane:\n    from threading import Lock"),
        ("seriatim.core.lanes.lane", "if TYPE_CHECKING:\n    from logging import Logger"),
        ("seriatim.core.lanes.lane", "import numpy"),
        ("seriatim.core.lanes.lane", "from seriatim.store.base import Store"),
        ("seriatim.core.lanes.lane", "from seriatim import log"),
        ("seriatim.core.lanes.lane", "from seriatim import SeriatimError"),
        ("seriatim.core.lanes.lane", "from .table import TransitionTable"),
        ("seriatim.core.lanes.lane", "from ..errors import NotFound"),
        ("seriatim.errors", "import seriatim.core.transition_table"),
        ("seriatim.config", "from seriatim.log import configure"),
        ("seriatim.log", "from seriatim.config import load"),
        ("seriatim.store.base", "from seriatim.store.sqlite.store import SqliteStore"),
        ("seriatim.store.sqlite.store", "from seriatim.engine import Engine"),
        ("seriatim.engine.writer", "from seriatim.store.sqlite.store import SqliteStore"),
        ("seriatim.engine.writer", "from seriatim.client import PubSub"),
        ("seriatim.client.topic", "from seriatim.spark import audit"),
        ("seriatim.core.resequencing.resequencer", "from seriatim.spark.kernel.kernel import Kernel"),
        ("seriatim.engine.writer", "from seriatim.spark.state.batch_versions import StateFolder"),
        ("seriatim.spark.kernel.kernel", "from seriatim.client import PubSub"),
        ("seriatim.server.server", "from seriatim.client import PubSub"),
        ("seriatim.pipes.route", "from seriatim.wire import encode"),
        ("seriatim.sparkplug.host", "from seriatim.store.sqlite.store import SqliteStore"),
        ("seriatim.client.topic", "from seriatim.cli.main import main"),
        ("seriatim.testing.clock", "from seriatim.client import PubSub"),
        ("seriatim.demo.run", "from seriatim.engine import Engine"),
        ("seriatim.client.topic", "from seriatim.demo.run import run"),
        ("seriatim", "from seriatim.cli.main import main"),
    ],
)
def test_the_checker_finds_a_forbidden_import(module, source):
    assert len(violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("seriatim.spark.kernel.intake", "from pyspark.sql import DataFrame"),
        ("seriatim.spark.kernel.intake", "from seriatim.spark.state.files import files_at"),
        ("seriatim.spark.state.batch_versions", "from seriatim.spark.edge_nodes.state import NodePartition"),
        ("seriatim.spark.state.batch_versions", "if TYPE_CHECKING:\n    from pyspark.sql import DataFrame"),
        ("seriatim.spark.frames.stream", "from seriatim.spark.topics.sink import Staging"),
        ("seriatim.spark.frames.stream", "from seriatim.spark import register"),
        ("seriatim.spark.frames.stream", "from seriatim.store.base import Pack"),
        ("seriatim.spark.frames.resequence", "def use():\n    from seriatim.spark.pipeline.run import Run"),
        ("seriatim.spark.topics.sink", "from seriatim.spark.frames.stream import partition_of"),
    ],
)
def test_the_checker_finds_a_forbidden_import_inside_spark(module, source):
    assert len(spark_violations(module, source)) == 1


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("seriatim.core.lanes.lane", "from __future__ import annotations\nfrom collections.abc import Mapping"),
        (
            "seriatim.core.lanes.lane",
            "import seriatim.core.transition_table\nfrom seriatim.errors import NotFound",
        ),
        (
            "seriatim.store.sqlite.store",
            "import sqlite3\nfrom seriatim.store.base import Store\nfrom seriatim.store import sql",
        ),
        (
            "seriatim.engine.writer",
            "import asyncio\nfrom seriatim.store.base import Store\nfrom seriatim import core, log",
        ),
        ("seriatim.client.topic", "from seriatim.wire import encode\nfrom seriatim.engine import Engine"),
        ("seriatim.spark.topics.source", "import pyspark\nfrom seriatim.store.sqlite.store import read_range"),
        (
            "seriatim.spark.kernel.kernel",
            "import numpy\nfrom seriatim.core.resequencing.options import ResequenceOptions",
        ),
        ("seriatim.testing.model", "import random\nfrom seriatim.core.lanes.lane import Lane"),
        ("seriatim.cli.serve", "from seriatim.server import serve\nfrom seriatim import __version__"),
        ("seriatim", "from seriatim.errors import SeriatimError"),
    ],
)
def test_the_checker_allows_what_the_design_allows(module, source):
    assert violations(module, source) == []


def test_the_checker_finds_a_cycle():
    sources = {
        "seriatim.a": "import seriatim.b",
        "seriatim.b": "from seriatim.c import d",
        "seriatim.c": "import seriatim.a",
    }
    cycle = find_cycle(sources)
    assert cycle is not None
    assert set(cycle) == set(sources)


def test_an_import_inside_a_function_or_for_types_closes_no_cycle():
    sources = {
        "seriatim.a": "def use():\n    import seriatim.b\nif TYPE_CHECKING:\n    import seriatim.b",
        "seriatim.b": "import seriatim.a",
    }
    assert find_cycle(sources) is None
