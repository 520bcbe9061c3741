"""Writes ``seriatim/client/blocking.py``, the blocking API, from the classes of the async API: ``make generate``.

Signatures, types and the first paragraphs of docstrings are copied from the source; ``async def`` becomes ``def``, ``async
with`` becomes ``with``, ``async for`` becomes ``for``, and handlers are plain functions. tests/client/test_blocking.py compares
the file with this.
"""

from __future__ import annotations

import ast
import copy
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from seriatim.client import consumer, message, pubsub, subscription, topic

TARGET = Path(pubsub.__file__).with_name("blocking.py")

CLASSES: list[tuple[ModuleType, str]] = [
    (pubsub, "PubSub"),
    (topic, "Topic"),
    (subscription, "Subscription"),
    (message, "Message"),
    (consumer, "MessageStream"),
]

INTERNAL = {
    "PubSub": {"blocking", "broker", "broker_for_consumers", "subscription_of"},
    "Topic": {"publisher"},
}
"""Public names of async classes that only the client itself uses."""

ATTRIBUTES = {
    "Topic": {"name": ("str", "The name of the topic.")},
    "Subscription": {
        "name": ("str", "The name of the subscription."),
        "topic": ("Topic | None", "Its topic. None if it was opened by its own name alone."),
    },
    "MessageStream": {"is_closed": ("bool", "Whether ``close`` was called.")},
}
"""What the async classes set when they are made, with types and docstrings."""

HEADER = '''"""The blocking API: the classes of the async API for programs without an event loop.

Written by ``make generate`` from the async classes; see ``blocking_facade.py`` for the rules.
"""

# mypy: disable-error-code="no-any-return"
# ruff: noqa: A002, SLF001

from __future__ import annotations

'''

SPECIAL = {
    ("PubSub", "__init__"): '''
def __init__(
    self,
    url: str = "memory://",
    *,
    standby: bool = False,
    tracing: bool | TracerProvider = False,
    workers: int | None = None,
) -> None:
    """Nothing is opened yet. At most ``workers`` handlers run at once. See ``seriatim.PubSub``."""
    super().__init__(pubsub.PubSub(url, standby=standby, tracing=tracing), LoopThread(workers or DEFAULT_WORKERS))
''',
    ("PubSub", "__aenter__"): """
def __enter__(self) -> PubSub:
    self._thread.start()
    try:
        self._call(self._target.__aenter__)
    except BaseException:
        self._thread.close()
        raise
    return self
""",
    ("PubSub", "__aexit__"): """
def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
    try:
        if not self._thread.is_inherited:
            self._call(self._target.__aexit__, kind, error, trace)
    finally:
        self._thread.close()
""",
    ("PubSub", "close"): """
def close(self) -> None:
    if not self._thread.is_inherited:
        self._call(self._target.close)
""",
    ("Subscription", "on"): """
def on(self, event: Literal["message", "error"], handler: Callable[[Any], object]) -> None:
    self._call(self._target.on, event, self._in_worker(handler))
""",
    ("Subscription", "handler"): """
def handler(self, function: AnyHandler) -> AnyHandler:
    self.on("message", function)
    return function
""",
}
"""Methods that differ in more than waiting; their docstrings are copied."""


def generate() -> str:
    parts = [ast.unparse(_class(module, name)) for module, name in CLASSES]
    pairs = ", ".join(f"{module.__name__.rpartition('.')[2]}.{name}: {name}" for module, name in CLASSES[1:])
    body = "\n\n\n".join(_docstrings_in_blocks(part) for part in parts) + f"\n\n\nFacade._facades.update({{{pairs}}})\n"
    text = HEADER + "\n".join(sorted(_imports(body))) + "\n\n" + TYPES + "\n\n" + body
    for command in (("check", "--select", "I,F401", "--fix"), ("format",)):
        text = subprocess.run(
            [Path(sys.executable).with_name("ruff"), *command, "--quiet", "--stdin-filename", str(TARGET), "-"],
            input=text,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
    return text


TYPES = """if TYPE_CHECKING:
    from opentelemetry.trace import TracerProvider

Handler = Callable[["Message"], object]
BatchHandler = Callable[["list[Message]"], object]
AnyHandler = TypeVar("AnyHandler", bound=Callable[[Any], object])
"""


def _imports(body: str) -> Iterator[str]:
    """Everything that the async modules import or define and the signatures name."""
    ours = {name for _, name in CLASSES} | {"Handler", "BatchHandler", "AnyHandler"}
    for module in dict.fromkeys(module for module, _ in CLASSES):
        yield f"from seriatim.client import {module.__name__.rpartition('.')[2]}"
        for statement in ast.walk(ast.parse(inspect.getsource(module))):
            if isinstance(statement, ast.ImportFrom) and statement.module not in {"__future__", "opentelemetry.trace"}:
                for name in statement.names:
                    if name.name not in ours and name.asname is None and re.search(rf"\b{name.name}\b", body):
                        yield f"from {statement.module} import {name.name}"
        for defined, value in vars(module).items():
            is_defined = getattr(value, "__module__", None) == module.__name__
            if is_defined and defined not in ours and defined[0] != "_" and re.search(rf"\b{defined}\b", body):
                yield f"from {module.__name__} import {defined}"
    yield "from seriatim.client.consumer import AckMode"
    yield "from seriatim.client.blocking_facade import DEFAULT_WORKERS, Facade, LoopThread, PublishResult"
    yield "from collections.abc import Callable, Iterator"
    yield "from typing import TYPE_CHECKING, TypeVar"


def _class(module: ModuleType, name: str) -> ast.ClassDef:
    source = ast.parse(inspect.getsource(getattr(module, name))).body[0]
    assert isinstance(source, ast.ClassDef)
    home = module.__name__.rpartition(".")[2]
    made = ast.parse(f"class {name}(Facade[{home}.{name}]):\n    __slots__ = ()").body[0]
    assert isinstance(made, ast.ClassDef)
    made.body = [_docstring(source), *made.body]
    made.body += [_reader(attribute, *about) for attribute, about in ATTRIBUTES.get(name, {}).items()]
    for member in source.body:
        if isinstance(member, ast.FunctionDef | ast.AsyncFunctionDef) and member.name not in INTERNAL.get(name, ()):
            made.body += _method(name, member)
    return made


def _docstring(node: ast.AST) -> ast.stmt:
    """What comes first in a docstring; the details are where the async class is."""
    text = (ast.get_docstring(node, clean=True) or "").partition("\n\n")[0]  # type: ignore[arg-type]
    return ast.Expr(ast.Constant(re.sub(r"\b[Aa]n async (?=context|iterator)", lambda an: an[0][0] + " ", text)))


def _reader(name: str, kind: str, about: str) -> ast.stmt:
    body = f'    """{about}"""\n    return self._wrap(self._target.{name})'
    return ast.parse(f"@property\ndef {name}(self) -> {kind}:\n{body}").body[0]


def _method(owner: str, source: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.stmt]:
    if (special := SPECIAL.get((owner, source.name))) is not None:
        method = ast.parse(special).body[0]
        assert isinstance(method, ast.FunctionDef)
        if ast.get_docstring(source) and not ast.get_docstring(method):
            method.body.insert(0, _docstring(source))
        yield method
        return
    is_dunder = source.name.startswith("_")
    if is_dunder and source.name not in {"__aenter__", "__aexit__", "__aiter__"}:
        return
    method = ast.parse(f"def {source.name}(): ...").body[0]
    assert isinstance(method, ast.FunctionDef)
    method.args, method.decorator_list = copy.deepcopy(source.args), copy.deepcopy(source.decorator_list)
    method.returns = copy.deepcopy(source.returns)
    method.name = source.name.replace("__a", "__", 1) if is_dunder else source.name
    method.body = [_docstring(source)] if ast.get_docstring(source) else []
    if source.name == "__aiter__":
        method.returns = ast.parse("Iterator[Message]", mode="eval").body
        method.body += ast.parse("return self._iterate()").body
    elif any(isinstance(each, ast.Name) and each.id == "property" for each in source.decorator_list):
        method.body += ast.parse(f"return self._wrap(self._target.{source.name})").body
    else:
        method.body += ast.parse(_delegation(source)).body
        if isinstance(method.returns, ast.Name) and method.returns.id == "PublishFuture":
            method.returns.id = "PublishResult"
    yield ast.fix_missing_locations(method)


def _delegation(source: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    arguments = source.args
    given = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args) if argument.arg != "self"]
    if arguments.vararg is not None:
        given.append(f"*{arguments.vararg.arg}")
    given += [f"{argument.arg}={argument.arg}" for argument in arguments.kwonlyargs]
    if arguments.kwarg is not None:
        given.append(f"**{arguments.kwarg.arg}")
    listed = ", ".join(given)
    if source.name == "run":
        listed = listed.replace("handler", "None if handler is None else self._in_worker(handler)", 1)
        return f"self._run_until_signal(self._target.run({listed}), self._target._stop_by_signal)"
    call = f"self._call(self._target.{source.name}{', ' if listed else ''}{listed})"
    is_empty = isinstance(source.returns, ast.Constant) and source.returns.value is None
    return call if is_empty else f"return {call}"


def _docstrings_in_blocks(source: str) -> str:
    """``ast.unparse`` writes docstrings as they are; those of several lines are indented like their code."""
    lines, inside, indent = [], False, ""
    for line in source.splitlines():
        if not inside and (found := re.match(r'( *)"""', line)):
            indent, inside = found[1], line.count('"""') == 1
            lines.append(line)
        elif inside:
            lines.append(indent + line.strip() if line.strip() == '"""' or not line.startswith(indent) else line)
            inside = '"""' not in line
        else:
            lines.append(line)
    return "\n".join(lines)


if __name__ == "__main__":
    TARGET.write_text(generate(), encoding="utf-8")
