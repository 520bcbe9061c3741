"""Batches on Kafka: the tests of every other store, with another ``run``."""

from __future__ import annotations

from tests.client.test_batches import (
    test_a_batch_is_acked_on_return,
    test_a_bulk_writer_gets_messages_of_many_keys_at_most_one_of_each,
    test_a_handler_dead_letters_one_message_of_its_batch,
    test_a_poison_message_in_the_middle_dead_letters_only_itself,
    test_an_ack_settles_the_messages_before_it_and_what_is_left_comes_again,
    test_many_messages_are_published_by_one_call_each_key_in_order,
    test_when_a_list_fails_its_messages_are_tried_alone_and_only_what_fails_then_has_failed,
)

__all__ = [
    "test_a_batch_is_acked_on_return",
    "test_a_bulk_writer_gets_messages_of_many_keys_at_most_one_of_each",
    "test_a_handler_dead_letters_one_message_of_its_batch",
    "test_a_poison_message_in_the_middle_dead_letters_only_itself",
    "test_an_ack_settles_the_messages_before_it_and_what_is_left_comes_again",
    "test_many_messages_are_published_by_one_call_each_key_in_order",
    "test_when_a_list_fails_its_messages_are_tried_alone_and_only_what_fails_then_has_failed",
]
