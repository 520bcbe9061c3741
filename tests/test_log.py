from __future__ import annotations

import io
import json
import logging
import subprocess
import sys

import pytest

from seriatim import log

pytestmark = pytest.mark.usefixtures("logger_as_it_was")


@pytest.mark.parametrize(
    ("configuration", "shown"),
    [
        ("", "a warning\n"),
        ("logging.disable()", ""),
        ("logging.basicConfig(format='%(name)s: %(message)s')", "seriatim: a warning\n"),
    ],
    ids=["by default", "disabled", "configured"],
)
def test_the_library_alone_configures_nothing_and_warnings_are_shown_as_python_does(configuration, shown):
    program = f"""
import logging
{configuration}
from seriatim.log import logger
logger.info("not shown")
logger.warning("a warning")
print(logger.handlers)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("[]\n", shown)


def test_text_entries_show_level_and_message():
    stream = io.StringIO()
    log.configure("info", "text", stream)
    logging.getLogger("seriatim.engine").warning("lane %s is paused", "a")
    logging.getLogger("seriatim").debug("not severe enough")
    assert stream.getvalue() == "WARNING: lane a is paused\n"


def test_json_entries_are_one_object_a_line_with_extra_fields():
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    logging.getLogger("seriatim").info("gap\ngiven up", extra={"key": "a", "gap": (3, 4)})
    entry = json.loads(stream.getvalue())
    assert entry.pop("time").endswith("+00:00")
    assert entry == {
        "level": "info",
        "logger": "seriatim",
        "message": "gap\ngiven up",
        "key": "a",
        "gap": [3, 4],
    }


def test_json_entries_carry_the_stack_trace():
    stream = io.StringIO()
    log.configure("debug", "json", stream)
    try:
        raise KeyError("lane")
    except KeyError:
        log.logger.exception("failed")
    assert "KeyError: 'lane'" in json.loads(stream.getvalue())["error"]


def test_configuring_again_replaces_the_former_output():
    former, stream = io.StringIO(), io.StringIO()
    log.configure("info", "text", former)
    log.configure("info", "text", stream)
    log.logger.info("once")
    assert (former.getvalue(), stream.getvalue()) == ("", "INFO: once\n")
