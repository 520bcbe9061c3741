"""The checker of Sparkplug nodes, with one planted anomaly of each kind: it finds that one, and nothing in a clean plant."""

from __future__ import annotations

from dataclasses import replace

from tests.nemesis.node_checker import Entry, Sent, Stored, check_nodes

NODE = "g/n"


class Plant:
    """One node, which sends, and a host, which stores. The stamp of a message is its number among all that were sent."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.stored: list[Stored] = []
        self.entries: list[Entry] = []
        self._birth = 0

    def birth(self, seq: int = 0) -> Plant:
        self._birth += 1
        return self._send("NBIRTH", seq)

    def send(self, *numbers: int, **changes) -> Plant:
        for seq in numbers:
            self._send("NDATA", seq, **changes)
        return self

    def death(self) -> Plant:
        return self._send("NDEATH", None)

    def _send(self, kind: str, seq: int | None, **changes) -> Plant:
        sent = Sent(NODE, len(self.sent) + 1, kind, seq, str(self._birth), self._birth)
        self.sent.append(replace(sent, **changes))
        return self

    def again(self) -> Plant:
        """The last message, once more."""
        self.sent.append(self.sent[-1])
        return self

    def store(self, *stamps: int, **changes) -> Plant:
        """These messages, as they were sent."""
        for stamp in stamps:
            sent = next(one for one in self.sent if one.stamp == stamp)
            bd_seq = sent.bd_seq if sent.kind in ("NBIRTH", "NDEATH") else None
            message = Stored(NODE, stamp, sent.kind, sent.seq, int(sent.birth), bd_seq=bd_seq, value=stamp)
            self.stored.append(replace(message, **changes))
        return self

    def enter(self, reason: str, stamp: int | None = None, first: int = 0, last: int = 0, epoch: int = 1) -> Plant:
        self.entries.append(Entry(NODE, reason, stamp, first, last, epoch))
        return self

    def kinds(self) -> list[str]:
        return [anomaly.kind for anomaly in check_nodes(self.sent, self.stored, self.entries)]


def test_a_clean_plant_has_no_anomaly() -> None:
    plant = Plant().birth().send(1, 2, 3).death().birth().send(1)
    assert plant.store(1, 2, 3, 4, 5, 6, 7).kinds() == []


def test_numbers_begin_again_after_255() -> None:
    assert Plant().birth(254).send(255, 0, 1).store(1, 2, 3, 4).kinds() == []


def test_what_was_sent_while_things_broke_need_not_come() -> None:
    assert Plant().birth().send(1, 2, 3).store(1, 2).kinds() == []


def test_a_message_that_nobody_sent_is_a_ghost() -> None:
    plant = Plant().birth().send(1).store(1, 2)
    plant.stored.append(replace(plant.stored[-1], stamp=9, seq=2, value=9, flag="stale"))
    assert plant.kinds() == ["ghost"]


def test_a_message_with_the_number_of_another_is_a_ghost() -> None:
    assert Plant().birth().send(1, 2).store(1).store(3, seq=1).kinds() == ["ghost"]


def test_a_death_under_the_number_of_another_session_is_a_ghost() -> None:
    assert "ghost" in Plant().birth().death().store(1).store(2, bd_seq=7).kinds()


def test_an_entry_about_what_nobody_sent_is_a_ghost() -> None:
    assert Plant().birth().store(1).enter("duplicate", 8).kinds() == ["ghost"]


def test_a_message_that_is_stored_twice_is_repeated() -> None:
    plant = Plant().birth().send(1).again().store(1, 2)
    plant.stored.append(replace(plant.stored[-1], epoch=2, flag="before-birth"))
    assert plant.kinds() == ["repeated"]


def test_a_message_behind_a_later_one_is_reordered() -> None:
    plant = Plant().birth().send(2, 1).store(1, 3, 2)
    assert plant.kinds() == ["reordered"]


def test_more_entries_than_copies_are_counted_twice() -> None:
    assert Plant().birth().send(1).again().store(1, 2).enter("duplicate", 2).kinds() == []
    assert Plant().birth().send(1).store(1, 2).enter("duplicate", 2).kinds() == ["counted twice"]


def test_a_hole_that_the_ledger_does_not_have_is_unreported() -> None:
    assert Plant().birth().send(4).store(1, 2).enter("lost", None, 1, 3).kinds() == []
    assert Plant().birth().send(4).store(1, 2).enter("lost", None, 1, 2).kinds() == ["unreported"]


def test_each_hole_has_an_entry_of_its_own() -> None:
    plant = Plant().birth().send(2, 130, 0, 2).store(1, 2, 3, 4, 5)
    plant.enter("lost", None, 1, 1).enter("lost", None, 3, 129).enter("lost", None, 131, 255)
    assert plant.kinds() == ["unreported"]
    assert plant.enter("lost", None, 1, 1).kinds() == []


def test_a_hole_behind_a_restart_of_the_host_is_unreported_too_unless_the_node_was_not_born() -> None:
    assert Plant().birth().send(1, 4).store(1, 2).store(3, flag="stale").kinds() == ["unreported"]
    assert Plant().birth().send(1, 4).store(1, 2).store(3, flag="stale", epoch=2).kinds() == ["unreported"]
    assert Plant().birth().send(1, 4).store(1, 2).store(3, flag="before-birth", epoch=2).kinds() == []
    assert Plant().birth().send(1, 4).store(1, 2).store(3, flag="before-birth").kinds() == ["unreported"]


def test_an_entry_counts_for_a_hole_of_its_own_epoch_only() -> None:
    plant = Plant().birth().send(1, 4, 7).store(1, 2)
    plant.store(3, flag="before-birth", epoch=2).store(4, flag="before-birth", epoch=2)
    assert plant.enter("lost", None, 5, 6, epoch=2).kinds() == []
    plant.entries[0] = replace(plant.entries[0], epoch=1)
    assert plant.kinds() == ["unreported", "phantom", "phantom"]


def test_a_hole_that_nobody_can_know_takes_no_entry_from_another() -> None:
    plant = Plant().birth().send(1, 3).birth().send(3).store(1, 2).store(3, flag="before-birth", epoch=2)
    plant.store(4, epoch=3).store(5, epoch=3)
    assert plant.enter("lost", None, 1, 2, epoch=3).kinds() == []


def test_nobody_can_know_what_was_lost_before_a_birth() -> None:
    assert Plant().birth().send(1, 2, 3).birth().store(1, 2, 5).kinds() == []


def test_a_loss_without_a_hole_is_a_phantom() -> None:
    assert Plant().birth().send(1).store(1, 2).enter("lost", None, 1, 1).kinds() == ["phantom"]


def test_a_death_of_another_session_is_wrong() -> None:
    assert Plant().birth().birth().death().store(1, 2, 3).kinds() == []
    plant = Plant().birth().death().birth().store(1, 3, 2)
    assert plant.kinds() == ["wrong death"]


def test_a_second_death_of_one_session_is_wrong() -> None:
    assert Plant().birth().death().death().store(1, 2, 3).kinds() == ["wrong death"]


def test_a_message_that_is_taken_for_one_of_another_session_needs_a_flag() -> None:
    assert Plant().birth().birth().send(1).store(1).store(3, flag="stale").kinds() == []
    assert Plant().birth().birth().send(1).store(1, 3).kinds() == ["wrong session"]


def test_a_metric_under_the_name_of_another_is_misnamed() -> None:
    assert Plant().birth().send(1).store(1).store(2, value=0).kinds() == ["misnamed"]
    assert Plant().birth().send(1).store(1).store(2, value=None).kinds() == ["misnamed"]
    assert Plant().birth().send(1).store(1).store(2, value=None, flag="stale").kinds() == []


def test_what_was_sent_undisturbed_and_is_not_stored_is_lost() -> None:
    assert Plant().birth().send(1, 2, is_calm=True).store(1, 2).kinds() == ["lost"]


def test_a_copy_that_was_sent_undisturbed_and_is_not_accounted_for_was_dropped() -> None:
    plant = Plant().birth().send(1, is_calm=True).again().store(1, 2)
    assert plant.kinds() == ["dropped"]
    assert plant.enter("duplicate", 2).kinds() == []
