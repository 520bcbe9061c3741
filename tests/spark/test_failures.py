"""What Spark reports, in one line of our own words."""

from __future__ import annotations

import pyspark
import pytest

from seriatim.errors import FailedPrecondition, NotFound, SeriatimError, StateMismatch
from seriatim.spark.failures import unwrapped

OF_A_TASK = """\
[STREAM_FAILED] Query [id = 1, runId = 2] terminated with exception: Job aborted due to stage failure: Task 0 in stage 3.0
failed 1 times: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "worker.py", line 2216, in main
    process()
  File "state.py", line 9, in open
    raise StateMismatch(
seriatim.errors.StateMismatch: batch 3 is missing: restore it

	at org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
SQLSTATE: XXKST
"""


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (OF_A_TASK, StateMismatch, "batch 3 is missing: restore it"),
        (
            OF_A_TASK.replace("seriatim.errors.StateMismatch", "ValueError"),
            FailedPrecondition,
            "Spark: ValueError: batch 3 is",
        ),
        (
            "[STREAM_FAILED] Query [x] terminated with exception: No space left SQLSTATE: XXKST\nat y",
            FailedPrecondition,
            "Spark: No space left",
        ),
        ("[TABLE_NOT_FOUND] there is none\nplan", FailedPrecondition, "Spark: [TABLE_NOT_FOUND] there is none"),
        ("", FailedPrecondition, "Spark: RuntimeError"),
        (
            "Failed to find data source: kafka. Please deploy",
            FailedPrecondition,
            f"spark-sql-kafka-0-10_2.13:{pyspark.__version__}",
        ),
        (
            "[STREAM_FAILED] exception: Some data may have been lost because they are not available in Kafka any more; either",
            FailedPrecondition,
            "Kafka no longer has messages that were not read yet; to continue without them, set failOnDataLoss to false",
        ),
        (
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: `pulsar`. Make sure",
            FailedPrecondition,
            "has no format 'pulsar'",
        ),
    ],
)
def test_the_line_that_tells_most_is_found(text, kind, said):
    found = unwrapped(RuntimeError(text))
    assert type(found) is kind
    assert said in str(found)
    assert "\n" not in str(found)
    assert "SQLSTATE" not in str(found)


def test_an_error_of_ours_stays_as_it_is():
    error: SeriatimError = NotFound("no")
    assert unwrapped(error) is error
