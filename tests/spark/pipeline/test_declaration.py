"""A pipeline file becomes objects, or an error that says what to correct."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

import pytest

from seriatim.errors import InvalidArgument, NotFound
from seriatim.spark.pipeline.declaration import Declaration, parse, read_declaration

WHOLE = """
[pipeline]
name = "telemetry"
checkpoint = "work/telemetry"

[source]
format = "seriatim"
options = { url = "sqlite:///shop.db", topic = "raw" }

[order]
key = "device"
sequence = "n"

[[sink]]
format = "parquet"
options = { path = "ordered" }
"""


def declared(text: str = WHOLE, folder: Path = Path("/pipelines")) -> Declaration:
    return parse(dedent(text), folder)


def with_line(after: str, line: str, text: str = WHOLE) -> str:
    assert after in text
    return text.replace(after, f"{after}\n{line}")


def complaint(text: str) -> str:
    with pytest.raises(InvalidArgument) as error:
        declared(text)
    return str(error.value)


def test_a_minimal_file_has_the_defaults():
    found = declared()
    assert (found.settings.require, found.settings.trigger) == (None, None)
    assert found.order == {"key": "device", "sequence": "n"}
    assert [sink.what for sink in found.sinks] == ["ordered"]
    assert found.spark == {}


def test_paths_belong_to_the_folder_of_the_file_and_state_lies_beside_the_checkpoint():
    found = declared().filled_in({})
    assert found.settings.checkpoint == "/pipelines/work/telemetry"
    assert found.order["state"] == "/pipelines/work/telemetry-state"
    assert found.source.options["url"] == "sqlite:////pipelines/shop.db"
    assert found.sinks[0].options["path"] == "/pipelines/ordered"


def test_absolute_paths_and_addresses_stay_as_they_are():
    text = WHOLE.replace("work/telemetry", "s3://bucket/telemetry/").replace("sqlite:///shop.db", "postgresql://h/d")
    found = declared(text.replace('"ordered"', '"/data/ordered"')).filled_in({})
    assert found.settings.checkpoint == "s3://bucket/telemetry/"
    assert found.order["state"] == "s3://bucket/telemetry-state"
    assert found.source.options["url"] == "postgresql://h/d"
    assert found.sinks[0].options["path"] == "/data/ordered"


def test_options_with_dots_are_one_name_and_values_become_what_spark_expects():
    found = declared(
        """
        [pipeline]
        name = "k"
        checkpoint = "c"
        [source]
        format = "kafka"
        [source.options]
        kafka.bootstrap.servers = "broker:9092"
        "kafka.group.id" = "g"
        maxOffsetsPerTrigger = 500
        failOnDataLoss = false
        [order]
        key = "k"
        sequence = "n"
        [[sink]]
        format = "noop"
        [spark]
        spark.master = "local[2]"
        jars.packages = "a:b:1"
        """
    ).filled_in({})
    assert found.source.options == {
        "kafka.bootstrap.servers": "broker:9092",
        "kafka.group.id": "g",
        "maxOffsetsPerTrigger": "500",
        "failOnDataLoss": "false",
    }
    assert found.spark == {"spark.master": "local[2]", "spark.jars.packages": "a:b:1"}


def test_variables_are_filled_in_for_spark_alone():
    text = WHOLE.replace("sqlite:///shop.db", "postgresql://me:${PASSWORD}@h/d").replace(
        '"ordered"', '"$${PASSWORD}-ordered"'
    )
    found = declared(text)
    assert found.filled_in({"PASSWORD": "xyzzy"}).source.options["url"] == "postgresql://me:xyzzy@h/d"
    assert found.filled_in({"PASSWORD": "xyzzy"}).sinks[0].options["path"] == "/pipelines/${PASSWORD}-ordered"
    assert "xyzzy" not in repr(found)
    assert found.secrets({"PASSWORD": "xyzzy"}) == {"xyzzy": "${PASSWORD}"}
    with pytest.raises(InvalidArgument, match=r"\[source\] options.url: there is no variable PASSWORD in the environ"):
        found.filled_in({})


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            with_line("[order]", 'gap_timout = "2s"'),
            "unknown field 'gap_timout' in [order]: did you mean 'gap_timeout'?",
        ),
        (
            with_line("[order]", "gap_timeout = true"),
            "[order] gap_timeout must be a duration such as '2s', or a number",
        ),
        (
            with_line("[order]", 'on_gap = "skp"'),
            "[order] on_gap must be one of 'skip', 'hold', 'dead-letter', 'request'",
        ),
        (with_line("[pipeline]", 'require = "exact"'), "[pipeline] require must be one of 'none', 'monotonic',"),
        (with_line("[pipeline]", 'trigger = "now"'), "[pipeline] trigger must be 'available-now', or a time between"),
        (
            with_line("[source]", 'promises = ["no los"]'),
            "[source] promises must be a level such as 'none', or a list of",
        ),
        (with_line("[source]", "schema = 7"), "[source] schema must be a string, not 7"),
        (with_line("[[sink]]", 'what = "everything"'), "[[sink]] 1 what must be one of 'ordered', 'ledger', 'late',"),
        (WHOLE.replace("[order]", "[ordr]"), "unknown table [ordr]: did you mean 'order'?"),
        (WHOLE.replace('key = "device"', ""), "[order] has no field 'key': it must be a string"),
        (WHOLE.replace("[[sink]]", "[spark]").replace("options = { path", "x = { path"), "there is no [[sink]]"),
        (WHOLE.replace("[[sink]]", "[sink]"), "there is no [[sink]]"),
        (WHOLE.replace('path = "ordered"', ""), "[[sink]] 1 has no options.path: format parquet needs it"),
        (
            WHOLE.replace('"parquet"', '"kafka"'),
            "[[sink]] 1 has no options.kafka.bootstrap.servers: format kafka needs it",
        ),
        (WHOLE.replace("path =", "compression = 'snappy', path ="), "unknown option 'compression' in [[sink]] 1"),
        (WHOLE.replace('"seriatim"', '"json"'), "[source] has no field 'schema': a stream of json files needs it"),
        (with_line("[pipeline]", "x"), "not valid TOML: "),
        (
            WHOLE.replace('topic = "raw"', 'topic = ["raw"]'),
            "[source] options: 'topic' must be a string, a number or a bo",
        ),
        (
            WHOLE.replace('topic = "raw"', "asyncProgressTrackingEnabled = true"),
            "'asyncProgressTrackingEnabled' is refused",
        ),
        (WHOLE + WHOLE[WHOLE.index("[[sink]]") :], "[[sink]] 2 writes to the same place as one before it"),
        (
            with_line("[[sink]]", 'what = "ledger"', with_line("[pipeline]", 'require = "strict"')),
            "[pipeline] require is about ordered rows, and there is no [[sink]] for them",
        ),
    ],
)
def test_what_is_wrong_is_named(text, said):
    assert said in complaint(text)


def test_two_outputs_may_share_a_topic_but_not_a_table():
    topic = """
    [[sink]]
    what = "late"
    format = "seriatim"
    options = { url = "sqlite:///shop.db", topic = "trouble" }
    """
    assert len(declared(WHOLE + dedent(topic) + dedent(topic).replace("late", "ledger")).sinks) == 3
    assert "same place" in complaint(WHOLE + '[[sink]]\nwhat = "ledger"\nformat = "parquet"\noptions.path = "ordered"')


def test_an_error_names_the_file(tmp_path):
    with pytest.raises(NotFound, match=r"there is no pipeline file '.*/none\.toml'"):
        read_declaration(tmp_path / "none.toml")
    (tmp_path / "p.toml").write_text("[pipeline]\nnam = 'x'")
    with pytest.raises(InvalidArgument, match=r"p\.toml: unknown field 'nam' in \[pipeline\]: did you mean 'name'\?"):
        read_declaration(tmp_path / "p.toml")
