"""What a declared pipeline can keep, and what it says of itself."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from seriatim.cli.main import cli
from seriatim.core.guarantees import Guarantee
from seriatim.errors import GuaranteeNotMet
from seriatim.spark.pipeline.guarantees import Explanation, explain
from tests.spark.pipeline.test_declaration import WHOLE, declared, with_line
from tests.test_architecture import loaded_with

FILE_SINK = '[[sink]]\nformat = "csv"\noptions.path = "out"\n'
LEDGER_SINK = '[[sink]]\nwhat = "ledger"\nformat = "json"\noptions.path = "ledger"\n'
CAREFUL = with_line("[order]", 'start = 1\non_gap = "hold"')
"""Nothing is ever given up: what is missing is waited for, and a key that is full stops the stream."""


def explained(text: str) -> Explanation:
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


def test_ordered_messages_without_a_key_are_in_no_order():
    topic = WHOLE.replace('"parquet"', '"seriatim"').replace("{ path =", '{ url = "memory://", topic =')
    assert kept(with_line("[[sink]]", 'columns.data = "payload"', topic)) == "none (no duplicate)"
    assert kept(with_line("[[sink]]", 'columns.data = "payload"\ncolumns.key = "device"', topic)) == "strict"


def test_a_pipeline_that_promises_too_much_is_refused_with_the_stage_to_blame():
    text = with_line("[pipeline]", 'require = "strict"')
    explained(text).require()
    with pytest.raises(GuaranteeNotMet) as error:
        explained(with_line("[order]", 'gap_timeout = "2s"', text.replace("strict", "absolute"))).require()
    assert "promises more than it can keep for ordered rows to parquet ordered: absolute is required" in str(
        error.value
    )
    assert "no loss is lost at 'put in order'" in str(error.value)
    assert "a gap is given up after 2s (gap_timeout)" in str(error.value)
    with pytest.raises(GuaranteeNotMet, match="no duplicate is lost at 'write csv out'"):
        explained(text + FILE_SINK).require()
    explained(text + LEDGER_SINK).require()  # a ledger has no order to keep


# -- the command --------------------------------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path, monkeypatch, logger_as_it_was):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)

    def command(text: str, *options: str):
        (tmp_path / "p.toml").write_text(text)
        return CliRunner().invoke(cli, ["explain", "p.toml", *options], prog_name="seriatim")

    return command


def test_explain_tells_each_stage_of_each_sink(run):
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
""".format(
    read="what a batch reads is in the checkpoint, and the same is read again after a crash",
    order=(
        "sorted by n within device, and copies are put aside; a gap is given up after 2s (gap_timeout); a gap is given up when "
        "its key is full (on_overflow); what is too far ahead in time is invalid (max_ahead): that is in the ledger, and still "
        "a loss"
    ),
    write="a batch appears whole, with its number; one that comes again adds nothing",
    append="format json can't tell a batch that comes again after a crash, and repeats its rows",
)


def test_explain_refuses_what_can_not_be_kept_and_still_shows_why(run):
    result = run(with_line("[pipeline]", 'require = "absolute"'), "--json")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: pipeline 'telemetry' promises more than it can keep")
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
    assert "pyspark" not in loaded_with("seriatim.cli.explain")
