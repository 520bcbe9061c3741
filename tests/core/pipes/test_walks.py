"""Long random walks of both ends of a pipe: the transition tables are exact."""

from __future__ import annotations

from random import Random

from seriatim.core.guarantees import Level
from seriatim.core.pipes import receiver as pipe_receiver
from seriatim.core.pipes import sender as pipe_sender
from seriatim.core.pipes.protocol import OnFull, PipeOptions
from tests.core.pipes.pipe_simulation import World, bad_network
from tests.core.pipes.test_network import random_world, send_all


def observed(monkeypatch, machine) -> set:
    """Every transition that instances of a machine make from now on."""
    seen: set = set()
    enter = machine._enter

    def watched(self, event) -> None:
        before = self.state
        enter(self, event)
        seen.add((before, event, self.state))

    monkeypatch.setattr(machine, "_enter", watched)
    return seen


def test_the_tables_of_both_ends_name_every_transition_that_happens_and_no_other(monkeypatch):
    sender = observed(monkeypatch, pipe_sender.PipeSender)
    receiver = observed(monkeypatch, pipe_receiver.PipeReceiver)
    for seed in range(250):
        send_all(random_world(seed), 100, Random(seed), crashes=6)
    for seed in range(20):
        drop_oldest(seed)
    assert sender == set(pipe_sender.TABLE)
    assert receiver == set(pipe_receiver.TABLE)


def drop_oldest(seed: int) -> None:
    """A pipe that drops the oldest message when it is full, before anybody has answered too."""
    options = PipeOptions(level=Level.STRICT, queue=2, window=2, on_full=OnFull.DROP_OLDEST, timeout=0.1)
    world = World(options, bad_network(seed), bad_network(-seed), durable_sender=False, durable_receiver=False)
    random = Random(seed)
    for number in range(40):
        world.apply(world.sender.push(b"%d" % number, world.now))
        if random.random() < 0.7:
            world.step()
    world.run_until_confirmed()
