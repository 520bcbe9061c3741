"""The queue of offsets behaves like a sorted list."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from seriatim.core.lanes.offset_queue import OffsetQueue
from seriatim.errors import InvalidArgument


class QueueAgainstSortedList(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.queue = OffsetQueue()
        self.model: list[int] = []
        self.highest = 0

    @rule(step=st.integers(1, 5))
    def push(self, step: int) -> None:
        self.highest += step
        self.queue.push(self.highest)
        self.model.append(self.highest)

    @rule()
    def pop(self) -> None:
        if self.model:
            assert self.queue.pop() == self.model.pop(0)

    @rule(offset=st.integers(-5, 60))
    def insert(self, offset: int) -> None:
        if offset in self.model:
            with pytest.raises(InvalidArgument, match=f"offset {offset} is in the queue already"):
                self.queue.insert(offset)
        else:
            self.queue.insert(offset)
            self.model = sorted([*self.model, offset])
            self.highest = max(self.highest, offset)

    @rule(offset=st.integers(-5, 60))
    def remove(self, offset: int) -> None:
        assert self.queue.remove(offset) == (offset in self.model)
        self.model = [known for known in self.model if known != offset]

    @rule(data=st.data())
    def remove_one_that_is_there(self, data: st.DataObject) -> None:
        if self.model:
            self.remove(data.draw(st.sampled_from(self.model)))

    @invariant()
    def same_content(self) -> None:
        assert list(self.queue) == self.model
        assert len(self.queue) == len(self.model)
        assert self.queue.front == (self.model[0] if self.model else None)
        assert all(offset in self.queue for offset in self.model)
        assert -99 not in self.queue


TestQueueAgainstSortedList = QueueAgainstSortedList.TestCase


def test_an_offset_that_does_not_rise_is_refused_and_changes_nothing() -> None:
    queue = OffsetQueue([3, 5, 7])
    with pytest.raises(InvalidArgument, match="offset 7 must be above 7, the last one in the queue"):
        queue.push(7)
    assert list(queue) == [3, 5, 7]


def test_an_emptied_queue_takes_any_offset() -> None:
    queue = OffsetQueue([9])
    queue.pop()
    queue.push(1)
    assert list(queue) == [1]


@given(st.integers(1, 400))
def test_a_drained_queue_keeps_no_memory_of_its_backlog(length: int) -> None:
    queue = OffsetQueue(range(length))
    for _ in range(length):
        queue.pop()
    assert not queue._array


def test_removing_most_of_a_backlog_frees_its_memory() -> None:
    queue = OffsetQueue(range(1000))
    for offset in range(1, 1000):
        assert queue.remove(offset)
    assert list(queue) == [0]
    assert len(queue._array or ()) <= 3


@given(st.integers(2, 50))
def test_removing_at_the_front_and_pushing_at_the_back_keeps_no_memory_of_what_passed(length: int) -> None:
    queue = OffsetQueue(range(length))
    for offset in range(1000):
        assert queue.remove(offset)
        queue.push(offset + length)
        assert len(queue._array or ()) <= 2 * length + 2
    assert list(queue) == list(range(1000, 1000 + length))


def test_what_goes_back_near_the_end_moves_nothing_at_the_front() -> None:
    queue = OffsetQueue([*range(100), 101])
    queue.insert(100)
    queue.insert(102)
    assert (list(queue), queue._first) == (list(range(103)), 0)


def test_what_goes_back_near_the_front_takes_the_room_that_was_made_for_it() -> None:
    queue = OffsetQueue(range(10, 110))
    for offset in range(9, -1, -1):
        queue.insert(offset)
    assert list(queue) == list(range(110))
    assert len(queue._array or ()) == 99 + 50


def test_one_that_was_removed_goes_back_to_its_place() -> None:
    queue = OffsetQueue(range(9))
    assert queue.remove(5)
    queue.insert(5)
    assert (list(queue), len(queue), 5 in queue) == (list(range(9)), 9, True)
