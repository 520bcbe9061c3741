-- A cursor or a reader may stand above the end of its log, behind offsets that were given to messages which were never
-- written. No message may get them any more: it would look settled.
UPDATE topics SET next_offset = greatest(
    next_offset,
    coalesce((SELECT max(floor) FROM subscriptions WHERE topic_id = topics.id), 0),
    coalesce((SELECT max(position) FROM readers WHERE topic_id = topics.id), 0)
);
