"""Hostile bytes: whatever comes from outside is refused by an error of ours, in bounded time and memory.

::

    targets.py   what is fuzzed: functions that take bytes, and raise only for what must not happen
    engines.py   targets with an engine behind them, one for many inputs
    link_owner.py, pubsub_api.py, sealed.py  larger targets: frames, requests, and state behind its checksums
    seeds.py     valid inputs to begin with (``python -m tests.fuzz.seeds`` writes them to the corpus)
    corpus/      inputs by target: seeds, what reached new code, and whatever was once a finding
    one.py       fuzzes one target, guided by coverage (atheris)
    __main__.py  all targets, one after another: ``python -m tests.fuzz --seconds 60``

``make test`` runs the corpus, without atheris; ``make soak`` fuzzes every target for a minute.
"""

MAX_SECONDS = 2.0
"""How long an input may take."""
