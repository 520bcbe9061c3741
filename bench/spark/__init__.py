"""The pipeline on Spark, each piece of work beside the least that anybody has to do: ``python -m bench.spark``.

The same 2 million rows for all (``trace.py``): 100 bytes of payload, 10 % displaced, 2 % twice, 0.5 % missing. Everything
runs in one session on all cores of this machine and writes to Spark's ``noop`` sink, or, where a pipeline is measured, to a
topic. In each round everybody has a turn, and ratios are taken within a round: only they mean anything on another machine.
By default the parts run that users wait for, in about half an hour; ``--only`` names any others.
"""
