"""Nothing lies unused in ``src``: each name that is defined there is used there, or exported, or kept for a reason given here.

A name counts as used where code of ``src`` reads it, whosever attribute it is, or where a page of the console names it. That is
coarse: it finds what nobody mentions any more, not every part that nobody reaches.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src/seriatim"

KEPT = {
    "Click calls it, or reads it": {"convert", "exit_code", "format_commands"},
    "asyncio calls it": {"pause_writing", "resume_writing", "_clock_resolution"},
    "uvicorn calls it, or reads it": {"capture_signals", "should_exit"},
    "Spark calls it, or reads it": {
        *("_instantiatedSession", "getDefaultReadLimit", "handle_error", "prepareForTriggerAvailableNow"),
        *("reportLatestOffset", "streamReader", "streamWriter"),
    },
    "pytest calls it, where Seriatim is installed": {"pubsub_emulator", "seriatim_in_memory"},
    "psycopg reads it": {"prepared_max"},
    "Jinja reads it": {"globals"},
    "protobuf reads it": {"edition", "etag", "oneof_index", "repeated_field_encoding"},
    "the server finds it by the name of the method that a client calls": {
        *("acknowledge", "modify_ack_deadline", "modify_push_config", "streaming_pull", "get_admin_address"),
        *("get_snapshot", "list_topic_snapshots", "list_topic_subscriptions"),
        *("commit_schema", "create_schema", "delete_schema", "delete_schema_revision", "get_schema", "list_schemas"),
        *("list_schema_revisions", "rollback_schema", "validate_message", "validate_schema"),
        *("get_iam_policy", "set_iam_policy", "test_iam_permissions"),
    },
    "a field that is written or passed on as a whole": {
        *("base_entries", "delta_entries", "flagged", "temperature"),
        *("dead_lettered", "deaths_ignored", "redelivered", "unknown_aliases", "unstorable"),
    },
    "a value that users choose by its text": {"RECEIPT"},
    "public, as a method or an attribute of a public class": {
        *("clear_message_order_cache", "disconnected", "displaced", "process_message_order", "transmit"),
    },
    "the docs' diagrams are drawn by it": {"to_mermaid"},
    "says how a module's tables look, for its readers and its tests": {"ROWS"},
    "how much was done, of which the engine reads only whether there is more; tests read all of it": {
        *("messages_removed", "packs_removed", "packs_rewritten"),
    },
    "the other one of a pair": {"BASIC", "outstanding_messages"},
    "holds a task, which could be collected while it runs otherwise": {"beginning"},
}


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield str(path.relative_to(SOURCE)), ast.parse(path.read_text(encoding="utf-8"))


def defined(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            # A decorator may register what it decorates, as a command for example.
            if not any(isinstance(one, ast.Call) and "command" in ast.unparse(one.func) for one in node.decorator_list):
                yield node.name
        elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.id if isinstance(node, ast.Name) else node.attr


def used(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and not isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in {"attrgetter", "getattr", "hasattr"}:
            yield from (str(each.value) for each in node.args if isinstance(each, ast.Constant))
        elif isinstance(node, ast.Assign) and any(ast.unparse(one) in EXPORTS for one in node.targets):
            yield from (str(each.value) for each in ast.walk(node) if isinstance(each, ast.Constant))


EXPORTS = {"__all__", "(__getattr__, __dir__)"}
"""What is assigned where a module lists its public names."""


def in_pages() -> set[str]:
    files = [*SOURCE.glob("console/templates/*.html"), *SOURCE.glob("console/static/*.js")]
    return {word for file in files for word in re.findall(r"\w+", file.read_text(encoding="utf-8"))}


def unused(sources: Iterable[tuple[str, ast.Module]]) -> dict[str, str]:
    """Names that nothing uses, each with a file that defines it."""
    homes: dict[str, str] = {}
    mentioned = in_pages()
    for file, tree in sources:
        homes |= dict.fromkeys(defined(tree), file)
        mentioned.update(used(tree))
    return {
        name: file
        for name, file in homes.items()
        if name not in mentioned and name.strip("_") and not re.fullmatch(r"__\w+__", name)
    }


def test_whatever_is_defined_is_used_or_kept_for_a_reason():
    found, kept = unused(trees()), set().union(*KEPT.values())
    assert {name: file for name, file in found.items() if name not in kept} == {}
    assert kept - found.keys() == set(), "used by now, or gone: take it off the list"


def test_a_function_that_nothing_calls_is_found():
    source = ast.parse("def lonely():\n    return others\n\ndef busy(): ...\n\nbusy()\n")
    assert unused([("module.py", source)]) == {"lonely": "module.py"}
