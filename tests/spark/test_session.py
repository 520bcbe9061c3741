from __future__ import annotations


def test_a_session_runs_on_this_machine(spark):
    assert spark.range(10).count() == 10
