"""What a declared pipeline can keep, and what it says of itself."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.core.guarantees import Guarantee
from seriatim.errors import GuaranteeNotMet
from seriatim.spark.pipeline import guarantees
from seriatim.spark.pipeline.guarantees import PipelineExplanation, explain
from tests.spark.pipeline.test_declaration import WHOLE, declared, with_line
from tests.test_architecture import loaded_with

FILE_SINK = '[[sink]]\nformat = "csv"\noptions.path = "out"\n'
LEDGER_SINK = '[[sink]]\nwhat = "ledger"\nformat = "json"\noptions.path = "ledger"\n'
FORGETFUL_KAFKA = """
[pipeline]
name = "readings"
checkpoint = "work"

[source]
format = "kafka"
promises = "strict"

[source.options]
{option}

[order]
key = "device"
sequence = "n"
start = 1
idle_after = "1h"

[[sink]]
format = "parquet"
options.path = "ordered"
"""
CAREFUL = with_line("[order]", 'start = 1\non_gap = "hold"')
"""Nothing is ever given up: what is missing is waited for, and a key that is full stops the stream."""


def explained(text: str) -> PipelineExplanation:
    return explain(declared(text))


def kept(text: str) -> str:
    return explained(text).routes[0].composition.guarantee.in_words()


@pytest.mark.parametrize(
    ("order", "left"),
    [
        ("", "absolute"),
        ('gap_timeout = "2s"', "strict"),  # it only reports, as on_gap is hold; but a row may be too far ahead
        ('gap_timeout = "2s"\non_invalid = "raise"', "absolute"),
        ('gap_timeout = "2s"\ntime = "processing"', "absolute"),
        ('on_overflow = "drop"', "strict"),
        ('epoch = "session"', "strict"),
        ('idle_after = "1h"', "none"),
        ('idle_after = "1h"\non_invalid = "raise"', "none (no loss)"),
        ("wrap = 256", "absolute"),
    ],
)
def test_what_a_patient_order_gives_up(order, left):
    assert kept(with_line("[order]", order, CAREFUL)) == left


@pytest.mark.parametrize(
    ("order", "left"),
    [
        ("", "strict"),
        ("start = 1", "strict"),
        ('start = 1\non_overflow = "raise"', "absolute"),
        ('on_overflow = "raise"', "strict"),
        ('start = 1\non_overflow = "raise"\ngap_timeout = "2s"', "strict"),
    ],
)
def test_what_an_impatient_order_gives_up(order, left):
    assert kept(with_line("[order]", order)) == left


@pytest.mark.parametrize(
    ("source", "left"),
    [
        ('promises = "none"', "strict"),
        ('promises = ["no loss", "no duplicate"]', "absolute"),
        ('options.failOnDataLoss = "false"', "strict"),
        ("options.registerReader = false", "strict"),
    ],
)
def test_no_stage_gives_back_what_the_source_has_lost(source, left):
    dotted = CAREFUL.replace("options = { url", "#")  # a table in one line can't be added to
    assert kept(with_line("[source]", source, CAREFUL if source.startswith("promises") else dotted)) == left


@pytest.mark.parametrize(("kind", "promised"), [("kafka", 4), ("rate", 0), ("seriatim", 4)])
def test_the_promise_of_a_source_depends_on_its_format(kind, promised):
    assert explained(WHOLE.replace('"seriatim"', f'"{kind}"')).routes[0].composition.source == Guarantee(promised)


def test_a_socket_can_not_be_read_again():
    said = "\n".join(explained(WHOLE.replace('"seriatim"', '"socket"')).describe())
    assert "a socket can't be read again after a crash" in said


def test_only_topics_and_tables_have_a_batch_exactly_once():
    topic = WHOLE.replace('"parquet"', '"seriatim"').replace("{ path =", '{ url = "memory://", topic =')
    for text, often, left in ((WHOLE, "exactly", "strict"), (topic, "exactly", "strict")):
        assert explained(text).routes[0].title.startswith("ordered rows to ")
        assert (explained(text).routes[0].delivery, kept(text)) == (f"{often}_once", left)
    route = explained(WHOLE[: WHOLE.index("[[sink]]")] + FILE_SINK).routes[0]
    assert (route.delivery, route.composition.guarantee) == ("at_least_once", Guarantee.NONE)


def test_kafka_keeps_order_within_a_partition_and_repeats_what_can_be_told():
    text = WHOLE.replace('"seriatim"', '"kafka"')
    text = (
        text[: text.index("[[sink]]")]
        + '[[sink]]\nformat = "kafka"\noptions = { topic = "out", kafka.bootstrap.servers = "b" }\n'
    )
    route = explained(text).routes[0]
    assert (route.delivery, route.composition.guarantee) == ("at_least_once", Guarantee.NONE)
    said = "\n".join(route.describe())
    assert "order holds within a partition of Kafka" in said
    assert "offsets that are gone stop the pipeline" in said
    assert "the same headers seriatim-query, -partition, -batch and -position" in said


@pytest.mark.parametrize(
    ("option", "left"),
    [
        ('subscribe = "readings"', "strict"),
        ('subscribe = "readings"\nfailOnDataLoss = false', "strict"),
        ('subscribe = "readings,readings-retried"', "none (no duplicate)"),
        ('subscribe = "${TOPICS}"', "none (no duplicate)"),
        ('subscribePattern = "readings-.*"', "none (no duplicate)"),
        ("""assign = '{"a": [0, 1], "b": [0]}'""", "none (no duplicate)"),
    ],
)
def test_a_source_of_several_kafka_topics_is_in_no_order_of_its_own(option, left):
    """Where keys are forgotten, the order of the source is all that is left."""
    explanation = explained(FORGETFUL_KAFKA.replace("{option}", option))
    assert explanation.routes[0].composition.guarantee.in_words() == left
    said = "a key may be in several topics (name a single one with subscribe)" in "\n".join(explanation.describe())
    assert said == (left != "strict")


def test_ordered_messages_without_a_key_are_in_no_order():
    topic = WHOLE.replace('"parquet"', '"seriatim"').replace("{ path =", '{ url = "memory://", topic =')
    assert kept(with_line("[[sink]]", 'columns.data = "payload"', topic)) == "none (no duplicate)"
    assert kept(with_line("[[sink]]", 'columns.data = "payload"\ncolumns.key = "device"', topic)) == "strict"


def test_a_pipeline_that_promises_too_much_is_refused_with_the_stage_to_blame():
    text = with_line("[pipeline]", 'require = "strict"')
    explained(text).require()
    with pytest.raises(GuaranteeNotMet) as error:
        explained(with_line("[order]", 'gap_timeout = "2s"', text.replace("strict", "absolute"))).require()
    assert "can't provide what it requires for ordered rows to parquet ordered: absolute is required" in str(
        error.value
    )
    assert "no loss is given up at 'put in order'" in str(error.value)
    assert "a gap is given up after 2s (gap_timeout)" in str(error.value)
    with pytest.raises(GuaranteeNotMet, match="no duplicate is given up at 'write csv out'"):
        explained(text + FILE_SINK).require()
    explained(text + LEDGER_SINK).require()  # a ledger has no order to keep


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch, logger_as_it_was):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def command(text: str, *options: str):
        (tmp_path / "p.toml").write_text(text)
        return CliRunner().invoke(cli, ["pipeline", "explain", "p.toml", *options], prog_name="seriatim")

    return command


def test_explain_tells_each_stage_of_each_sink(run, monkeypatch):
    monkeypatch.setattr(guarantees, "version", {"pyspark": "4.3.0"}.__getitem__)  # others warn of topics, too
    result = run(with_line("[order]", 'gap_timeout = "2s"\nstart = 1') + LEDGER_SINK)
    assert result.exit_code == 0
    assert result.stdout == EXPLAINED


EXPLAINED = """\
pipeline 'telemetry'

ordered rows to parquet ordered, exactly once
  source: none (no loss)
  1. read seriatim: none (no loss), reliability 1 - keeps what arrives: {read}
  2. put in order: strict - gives up no loss and restores no inversion, no duplicate: {order}
  3. write parquet ordered: strict - keeps what arrives: {write}
  end to end: strict

ledger rows to json ledger, at least once: {append}

warning: rows may wait 2s for missing ones: a later query with a watermark drops them unless its delay is longer
warning: every key is remembered (no idle_after): {grows}
""".format(
    grows="where new keys keep coming, the state only grows; idle_after forgets those that have been silent for a while",
    read="what a batch reads is in the checkpoint, and the same is read again after a crash",
    order=(
        "sorted by n within device, and copies are put aside; a gap is given up after 2s (gap_timeout); a gap is given up when "
        "its key is full (on_overflow); what is too far ahead in time is invalid (max_ahead): that is in the ledger, and still "
        "a loss"
    ),
    write="a batch appears whole, with its number; a repeated batch adds nothing",
    append="format json can't tell a batch that comes again after a crash, and repeats its rows",
)


def test_explain_refuses_what_can_not_be_kept_and_still_shows_why(run):
    result = run(with_line("[pipeline]", 'require = "absolute"'), "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: pipeline 'telemetry' can't provide what it requires")
    found = json.loads(result.stdout)
    assert (found["required"], found["sinks"][0]["guarantee"]) == ("absolute", "strict")
    assert [step["stage"] for step in found["sinks"][0]["stages"]] == [
        "read seriatim",
        "put in order",
        "write parquet ordered",
    ]


def test_explain_shows_no_secret(run, monkeypatch):
    monkeypatch.setenv("PASSWORD", "xyzzy")
    result = run(WHOLE.replace("sqlite:///shop.db", "postgresql://me:${PASSWORD}@host/d"), "--json")
    assert result.exit_code == 0
    assert "xyzzy" not in result.output
    assert "host" not in result.output


def test_explain_starts_nothing():
    assert "pyspark" not in loaded_with("seriatim.cli.pipeline.explain")


@pytest.mark.parametrize(
    ("source", "options", "remedy"),
    [
        ("parquet", "", "set maxFilesPerTrigger"),
        ("kafka", "", "set maxOffsetsPerTrigger"),
        ("redis", "", "use an option of the format"),
        ("parquet", "maxfilespertrigger = 1", None),
        ("kafka", "maxOffsetsPerTrigger = 1000", None),
    ],
)
def test_a_source_that_nothing_limits_is_warned_of(source, options, remedy):
    said = [one for one in minimal(source, options).warnings if "nothing limits a batch" in one]
    assert [remedy in one for one in said] == ([] if remedy is None else [True])


@pytest.mark.parametrize(
    ("installed", "warned"), [("4.0.1", True), ("4.1.4", True), ("4.2.0", False), ("4.10.0.dev1", False)]
)
def test_a_topic_that_nothing_limits_is_warned_of_before_spark_4_2(monkeypatch, installed, warned):
    monkeypatch.setattr(guarantees, "version", {"pyspark": installed}.__getitem__)
    said = [
        one for one in minimal("seriatim", "").warnings if "before Spark 4.2 a backlog of a topic is read in one" in one
    ]
    assert len(said) == warned


@pytest.mark.parametrize(("timeout", "said"), [("", "without end"), ('gap_timeout = "20s"', "may wait 20s")])
def test_rows_that_wait_longer_than_a_watermark_are_warned_of(timeout, said):
    explanation = minimal("seriatim", "", timeout)
    (line,) = (line for line in explanation.describe() if line.startswith("warning: rows"))
    (warning,) = (one for one in explanation.as_fields()["warnings"] if one.startswith("rows"))
    assert said in line
    assert said in warning


@pytest.mark.parametrize(("order", "warned"), [("", True), ('idle_after = "1h"', False)])
def test_state_that_only_grows_is_warned_of_with_what_to_do(order, warned):
    said = [one for one in minimal("seriatim", "", order).warnings if "idle_after forgets" in one]
    assert len(said) == warned


def minimal(source: str, options: str, order: str = "") -> PipelineExplanation:
    return explained(
        f"""
[pipeline]
name = "small"
checkpoint = "work"
[source]
format = "{source}"
schema = "k string, n int"
[source.options]
subscribe = "raw"
{options}
[order]
key = "k"
sequence = "n"
{order}
{FILE_SINK}
"""
    )
