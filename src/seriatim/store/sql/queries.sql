-- What both dialects are asked in the same words, by name. Values are given in the order of the question marks, which are numbered
-- for PostgreSQL when this file is read. "offset" is a word of PostgreSQL's language.

-- name: schema_version
-- The last migration, or NULL.
SELECT max(version) FROM migrations;

-- name: note_migration
-- A migration was applied.
INSERT INTO migrations (version, name) VALUES (?, ?);

-- name: raise_epoch
-- A new owner: whoever owned the store before can change nothing any more.
UPDATE store SET epoch = epoch + 1 RETURNING epoch;

-- name: epoch
-- The epoch of the present owner.
SELECT epoch FROM store;

-- name: topic_options
-- No row when there is no such topic.
SELECT options FROM topics WHERE id = ?;

-- name: topic
-- No row when there is no such topic.
SELECT name, options FROM topics WHERE id = ?;

-- name: topic_named
-- Whether a name is taken.
SELECT id FROM topics WHERE name = ?;

-- name: create_topic
-- An empty log.
INSERT INTO topics (name, options, next_offset) VALUES (?, ?, 0) RETURNING id;

-- name: update_topic
-- New options.
UPDATE topics SET options = ? WHERE id = ? RETURNING id;

-- name: rename_topic
-- Another name for the same log.
UPDATE topics SET name = ? WHERE id = ? RETURNING id;

-- name: delete_topic
-- Everything of it goes with it.
DELETE FROM topics WHERE id = ? RETURNING id;

-- name: subscriptions
-- Every subscription.
SELECT id, topic_id, name, options FROM subscriptions ORDER BY id;

-- name: subscriptions_of_topic
-- Whose cursors decide what of a topic may go.
SELECT id, floor, since, floor_checksum FROM subscriptions WHERE topic_id = ?;

-- name: subscription_named
-- Whether a name is taken within a topic.
SELECT id FROM subscriptions WHERE topic_id = ? AND name = ?;

-- name: create_subscription
-- With its floor, and the next offset of its topic; its blocks follow.
INSERT INTO subscriptions (topic_id, name, options, floor, since, floor_checksum) VALUES (?, ?, ?, ?, ?, ?) RETURNING id;

-- name: update_subscription
-- New options.
UPDATE subscriptions SET options = ? WHERE id = ? RETURNING id;

-- name: delete_subscription
-- Everything of it goes with it.
DELETE FROM subscriptions WHERE id = ? RETURNING id;

-- name: floor
-- Below it everything is settled; no row when there is no such subscription.
SELECT floor, since, floor_checksum FROM subscriptions WHERE id = ?;

-- name: set_floor
-- A floor was raised by clean-up or moved by a seek.
UPDATE subscriptions SET floor = ?, floor_checksum = ? WHERE id = ?;

-- name: append_pack
-- The messages of one append call, or what was left over of several packs.
INSERT INTO packs (topic_id, first_offset, last_offset, messages, bytes, newest, leftover, head, data)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: delete_pack
-- Nothing in it is needed any more, or what is has been written anew.
DELETE FROM packs WHERE id = ?;

-- name: delete_packs_between
-- Nothing in a run of packs is needed any more; both ends are last offsets, and included.
DELETE FROM packs WHERE topic_id = ? AND last_offset BETWEEN ? AND ?;

-- name: packs_from
-- What is to be known of the packs that hold an offset or come after it, without reading them.
SELECT id, first_offset, last_offset, messages, bytes, newest, leftover
FROM packs WHERE topic_id = ? AND last_offset >= ? ORDER BY last_offset LIMIT ?;

-- name: heads_from
-- The heads of the packs that hold an offset or come after it.
SELECT last_offset, head FROM packs WHERE topic_id = ? AND last_offset >= ? ORDER BY last_offset LIMIT ?;

-- name: pack_from
-- The first pack that holds an offset or comes after it.
SELECT last_offset, head, data FROM packs WHERE topic_id = ? AND last_offset >= ? ORDER BY last_offset LIMIT 1;

-- name: pack_head
-- The head of one pack.
SELECT head FROM packs WHERE id = ?;

-- name: pack_data
-- The data of one pack.
SELECT data FROM packs WHERE id = ?;

-- name: first_kept
-- The first pack that holds an offset or comes after it, without reading it.
SELECT first_offset, last_offset, messages, id FROM packs
WHERE topic_id = ? AND last_offset >= ? ORDER BY last_offset LIMIT 1;

-- name: settle
-- Messages are done (0) or not done any more (1).
INSERT INTO settlements (subscription_id, undone, offsets) VALUES (?, ?, ?);

-- name: settlements
-- What of a subscription is not in its blocks yet, in order.
SELECT undone, offsets FROM settlements WHERE subscription_id = ? ORDER BY id;

-- name: oldest_settlements
-- What is to be folded into blocks next.
SELECT id, subscription_id, undone, offsets FROM settlements ORDER BY id LIMIT ?;

-- name: forget_settlements_until
-- They are in the blocks now.
DELETE FROM settlements WHERE id <= ?;

-- name: forget_settlements
-- A seek replaces them.
DELETE FROM settlements WHERE subscription_id = ?;

-- name: blocks
-- Everything settled above the floor of a subscription.
SELECT block, bits FROM settled_blocks WHERE subscription_id = ? ORDER BY block;

-- name: blocks_between
-- What is settled in a range of blocks, both ends included.
SELECT block, bits FROM settled_blocks WHERE subscription_id = ? AND block BETWEEN ? AND ?;

-- name: block_numbers_between
-- Which blocks there are in a range, both ends included.
SELECT block FROM settled_blocks WHERE subscription_id = ? AND block BETWEEN ? AND ?;

-- name: put_block
-- Write a block anew.
INSERT INTO settled_blocks (subscription_id, block, bits) VALUES (?, ?, ?)
ON CONFLICT (subscription_id, block) DO UPDATE SET bits = excluded.bits;

-- name: delete_block
-- Nothing is settled in it, or no message of it is kept.
DELETE FROM settled_blocks WHERE subscription_id = ? AND block = ?;

-- name: delete_blocks_below
-- The floor has passed them.
DELETE FROM settled_blocks WHERE subscription_id = ? AND block < ?;

-- name: delete_blocks
-- A seek replaces them.
DELETE FROM settled_blocks WHERE subscription_id = ?;

-- name: troubles
-- What is known of single messages.
SELECT "offset", failures, not_before, error, steps_aside, checksum FROM troubles WHERE subscription_id = ? ORDER BY "offset";

-- name: has_troubles
-- Whether there is anything to forget.
SELECT 1 FROM troubles WHERE subscription_id = ? LIMIT 1;

-- name: note_trouble
-- Write down, or overwrite.
INSERT INTO troubles (subscription_id, "offset", failures, not_before, error, steps_aside, checksum)
VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (subscription_id, "offset") DO UPDATE SET
    failures = excluded.failures, not_before = excluded.not_before,
    error = excluded.error, steps_aside = excluded.steps_aside, checksum = excluded.checksum;

-- name: forget_trouble
-- The message is done, or has left its lane.
DELETE FROM troubles WHERE subscription_id = ? AND "offset" = ?;

-- name: forget_troubles
-- A seek starts afresh.
DELETE FROM troubles WHERE subscription_id = ?;

-- name: forget_troubles_below
-- Clean-up of what the floor has passed.
DELETE FROM troubles WHERE subscription_id = ? AND "offset" < ?;

-- name: paused_keys
-- Keys that wait for an operator.
SELECT lane, reason, checksum FROM paused_keys WHERE subscription_id = ? ORDER BY lane;

-- name: pause_key
-- Or give another reason.
INSERT INTO paused_keys (subscription_id, lane, reason, checksum) VALUES (?, ?, ?, ?)
ON CONFLICT (subscription_id, lane) DO UPDATE SET reason = excluded.reason, checksum = excluded.checksum;

-- name: resume_key
-- Nothing is left of the pause.
DELETE FROM paused_keys WHERE subscription_id = ? AND lane = ?;

-- name: dead_letters
-- Messages that left their lanes undelivered, with their checksums as they were before anything overtook them.
SELECT "offset", key, attempts, time, error, copy_topic_id, copy_offset, overtaken,
    CASE WHEN overtaken THEN -1 - checksum ELSE checksum END
FROM dead_letters WHERE subscription_id = ? ORDER BY "offset";

-- name: bury
-- Or overwrite what is known of the dead letter.
INSERT INTO dead_letters (
    subscription_id, "offset", key, attempts, time, error, copy_topic_id, copy_offset, overtaken, checksum
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (subscription_id, "offset") DO UPDATE SET
    key = excluded.key, attempts = excluded.attempts, time = excluded.time, error = excluded.error,
    copy_topic_id = excluded.copy_topic_id, copy_offset = excluded.copy_offset, overtaken = excluded.overtaken,
    checksum = excluded.checksum;

-- name: forget_dead_letter
-- It went back to its place, or was given up.
DELETE FROM dead_letters WHERE subscription_id = ? AND "offset" = ?;

-- name: buried_between
-- The dead letters in a range of a topic, of any subscription, both ends included.
SELECT dead_letters."offset" FROM dead_letters JOIN subscriptions ON subscriptions.id = dead_letters.subscription_id
WHERE subscriptions.topic_id = ? AND dead_letters."offset" BETWEEN ? AND ?;

-- name: readers
-- Every registered reader.
SELECT name, topic_id, position FROM readers ORDER BY name;

-- name: reader
-- No row when there is no such reader.
SELECT name, topic_id, position FROM readers WHERE name = ?;

-- name: reader_positions
-- How far the readers of a topic are, and since when they read.
SELECT position, since FROM readers WHERE topic_id = ?;

-- name: put_reader
-- Register a reader, or move it. One that stays with its topic has read it since it was first registered.
INSERT INTO readers (name, topic_id, position, since) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET topic_id = excluded.topic_id, position = excluded.position,
    since = CASE WHEN readers.topic_id = excluded.topic_id THEN readers.since ELSE excluded.since END;

-- name: delete_reader
-- It pins nothing any more.
DELETE FROM readers WHERE name = ? RETURNING name;

-- name: snapshots
-- Every snapshot.
SELECT name, topic_id, cursor, expires, options FROM snapshots ORDER BY name;

-- name: snapshot
-- No row when there is no such snapshot.
SELECT name, topic_id, cursor, expires, options FROM snapshots WHERE name = ?;

-- name: snapshot_cursors
-- What the snapshots of a topic have settled.
SELECT cursor FROM snapshots WHERE topic_id = ?;

-- name: put_snapshot
-- Keep a cursor by name, or replace it.
INSERT INTO snapshots (name, topic_id, cursor, expires, options) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE SET
    topic_id = excluded.topic_id, cursor = excluded.cursor, expires = excluded.expires, options = excluded.options;

-- name: documents
-- Every document of a kind.
SELECT name, text FROM documents WHERE kind = ? ORDER BY name;

-- name: put_document
-- Keep a document, or replace it.
INSERT INTO documents (kind, name, text) VALUES (?, ?, ?)
ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text;

-- name: delete_document
-- Forget a document.
DELETE FROM documents WHERE kind = ? AND name = ? RETURNING name;

-- name: delete_snapshot
-- It pins nothing any more.
DELETE FROM snapshots WHERE name = ? RETURNING name;

-- name: delete_expired_snapshots
-- Their time is over.
DELETE FROM snapshots WHERE expires <= ?;

-- name: published_ids
-- The ids that are known of a topic, in the order of storing: one row for all that one transaction stored.
SELECT number, published, ids, numbers FROM published_ids WHERE topic_id = ?1 ORDER BY number;

-- name: put_published_ids
-- The number of all ids so far, the time, and the new ones with the digests and offsets of their messages.
INSERT INTO published_ids (topic_id, number, published, ids, numbers) VALUES (?1, ?2, ?3, ?4, ?5);

-- name: forget_published_ids
-- Those that are too old, and those beyond the number that is kept.
DELETE FROM published_ids WHERE topic_id = ?1 AND (
    published <= ?2 OR number <= (SELECT max(number) FROM published_ids WHERE topic_id = ?1) - ?3
);

-- name: batches_of_writer
-- What a writer has written; no row when it never wrote.
SELECT batches FROM writers WHERE name = ?;

-- name: put_batches_of_writer
-- It has written one more.
INSERT INTO writers (name, batches) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET batches = excluded.batches;

-- name: packs_after
-- One pack after another, whole.
SELECT id, first_offset, last_offset, messages, head, data FROM packs
WHERE topic_id = ? AND first_offset > ? ORDER BY first_offset, id LIMIT 1;

-- name: overtake
-- A later message of its key is settled. The checksum tells, too: it is turned over.
UPDATE dead_letters SET checksum = CASE WHEN overtaken THEN checksum ELSE -1 - checksum END, overtaken = true
WHERE subscription_id = ? AND "offset" = ?;

-- name: writers
-- Those whose names begin with a prefix.
SELECT name, batches FROM writers WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 ORDER BY name;
