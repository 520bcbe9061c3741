-- What the store asks of PostgreSQL, by name.

-- name: prepare_session
-- Committed means on the disk, whatever the server's default is; a setting that waits for replicas as well is kept. Nothing waits
-- for a lock for ever.
SELECT
    set_config('search_path', $1, false),
    set_config('lock_timeout', $2, false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'remote_apply' THEN 'remote_apply' ELSE 'on' END, false);

-- name: mark
-- The mark that makes a schema ours; also for a role that may not use the schema.
SELECT obj_description(pg_class.oid, 'pg_class') FROM pg_class JOIN pg_namespace ON pg_namespace.oid = relnamespace
WHERE nspname = $1 AND relname = 'store';

-- name: table_names
-- What is in the schema: nothing in a new one.
SELECT tablename FROM pg_tables WHERE schemaname = $1;

-- name: schema_names
-- Whether there is a schema of this name.
SELECT nspname FROM pg_namespace WHERE nspname = $1;

-- name: lock_opening
-- One process at a time opens a store: this lock ends with the transaction. Who is stopped meanwhile loses it.
SELECT set_config('idle_in_transaction_session_timeout', $2, true), pg_advisory_xact_lock($1);

-- name: own
-- The lock of the owner: it ends with the connection.
SELECT pg_advisory_lock($1);

-- name: disown
-- Somebody else may have it.
SELECT pg_advisory_unlock($1);

-- name: holders
-- The connection that has the lock of the owner, if any. Those who wait for their turn take it for a moment as SHARE.
SELECT pid FROM pg_locks
WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
AND ((classid::bigint << 32) | objid::bigint) = $1 AND objsubid = 1 AND mode = 'ExclusiveLock' AND granted;

-- name: terminate
-- End a connection and what it has under way, and wait until it has ended.
SELECT pg_terminate_backend($1::integer, 5000);

-- name: backend_at_work
-- No row when a connection is gone, or waits for its client, for a lock of somebody else or for time to pass.
SELECT 1 FROM pg_stat_activity
WHERE pid = $1 AND state = 'active' AND coalesce(wait_event_type, '') NOT IN ('Client', 'Lock', 'Timeout');

-- name: owner
-- Who renewed the lease last, and for how many more seconds it lasts by the clock of the server.
SELECT process, host, application, extract(epoch FROM renewed - clock_timestamp())::double precision + lease
FROM owner;

-- name: put_owner
-- A new owner, with a fresh lease.
UPDATE owner SET epoch = $1, process = $2, host = $3, application = $4, lease = $5, renewed = clock_timestamp();

-- name: renew_lease
-- No row when another owner has taken over.
UPDATE owner SET renewed = clock_timestamp() WHERE epoch = $1 RETURNING epoch;

-- name: release_lease
-- The owner gives the store back.
UPDATE owner SET renewed = NULL WHERE epoch = $1;

-- name: hold_epoch
-- Every transaction begins with this: nobody can take over before it ends, and a former owner can do nothing.
SELECT hold_epoch($1);

-- name: create_migrations
-- Which migrations have been applied.
CREATE TABLE migrations (version bigint PRIMARY KEY, name text NOT NULL);

-- name: schema_version
-- The last migration, or NULL.
SELECT max(version) FROM migrations;

-- name: note_migration
-- A migration was applied.
INSERT INTO migrations (version, name) VALUES ($1, $2);

-- name: raise_epoch
-- A new owner: whoever owned the store before can change nothing any more.
UPDATE store SET epoch = epoch + 1 RETURNING epoch;

-- name: epoch
-- The epoch of the present owner.
SELECT epoch FROM store;

-- name: next_token
-- The lowest fencing token that was never given out.
SELECT next_token FROM store;

-- name: reserve_tokens
-- Never lowers what was reserved.
UPDATE store SET next_token = greatest(next_token, $1);

-- name: topics
-- Every topic, with the offset above all that it ever held.
SELECT id, name, options, greatest(next_offset, coalesce((
    SELECT last_offset + 1 FROM packs WHERE topic_id = topics.id ORDER BY last_offset DESC LIMIT 1
), 0))
FROM topics ORDER BY id;

-- name: next_offset
-- The offset above all that a topic ever held; no row when there is no such topic.
SELECT greatest(next_offset, coalesce((
    SELECT last_offset + 1 FROM packs WHERE topic_id = topics.id ORDER BY last_offset DESC LIMIT 1
), 0))
FROM topics WHERE id = $1;

-- name: topic_options
-- No row when there is no such topic.
SELECT options FROM topics WHERE id = $1;

-- name: topic
-- No row when there is no such topic.
SELECT name, options FROM topics WHERE id = $1;

-- name: topic_named
-- Whether a name is taken.
SELECT id FROM topics WHERE name = $1;

-- name: create_topic
-- An empty log.
INSERT INTO topics (name, options, next_offset) VALUES ($1, $2, 0) RETURNING id;

-- name: update_topic
-- New options.
UPDATE topics SET options = $1 WHERE id = $2 RETURNING id;

-- name: rename_topic
-- Another name for the same log.
UPDATE topics SET name = $1 WHERE id = $2 RETURNING id;

-- name: delete_topic
-- Everything of it goes with it.
DELETE FROM topics WHERE id = $1 RETURNING id;

-- name: remember_next_offset
-- Before the last packs of a topic are removed, so that no offset is given twice.
UPDATE topics SET next_offset = greatest(next_offset, $1) WHERE id = $2;

-- name: pass_offsets
-- A subscription has passed offsets that no message has: none may get them.
UPDATE topics SET next_offset = greatest(next_offset, $1)
WHERE id = (SELECT topic_id FROM subscriptions WHERE id = $2);

-- name: subscriptions
-- Every subscription.
SELECT id, topic_id, name, options FROM subscriptions ORDER BY id;

-- name: subscriptions_of_topic
-- Whose cursors decide what of a topic may go.
SELECT id, floor, since FROM subscriptions WHERE topic_id = $1;

-- name: subscription_named
-- Whether a name is taken within a topic.
SELECT id FROM subscriptions WHERE topic_id = $1 AND name = $2;

-- name: create_subscription
-- With its floor, and the next offset of its topic; its blocks follow.
INSERT INTO subscriptions (topic_id, name, options, floor, since) VALUES ($1, $2, $3, $4, $5) RETURNING id;

-- name: update_subscription
-- New options.
UPDATE subscriptions SET options = $1 WHERE id = $2 RETURNING id;

-- name: delete_subscription
-- Everything of it goes with it.
DELETE FROM subscriptions WHERE id = $1 RETURNING id;

-- name: floor
-- Below it everything is settled; no row when there is no such subscription.
SELECT floor FROM subscriptions WHERE id = $1;

-- name: set_floor
-- A floor was raised by clean-up or moved by a seek.
UPDATE subscriptions SET floor = $1 WHERE id = $2;

-- name: append_pack
-- The messages of one append call, or what was left over of several packs.
INSERT INTO packs (topic_id, first_offset, last_offset, messages, bytes, newest, leftover, head, data)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9);

-- name: delete_pack
-- Nothing in it is needed any more, or what is has been written anew.
DELETE FROM packs WHERE id = $1;

-- name: delete_packs_between
-- Nothing in a run of packs is needed any more; both ends are last offsets, and included.
DELETE FROM packs WHERE topic_id = $1 AND last_offset BETWEEN $2 AND $3;

-- name: packs_from
-- What is to be known of the packs that hold an offset or come after it, without reading them.
SELECT id, first_offset, last_offset, messages, bytes, newest, leftover
FROM packs WHERE topic_id = $1 AND last_offset >= $2 ORDER BY last_offset LIMIT $3;

-- name: heads_from
-- The heads of the packs that hold an offset or come after it.
SELECT last_offset, head FROM packs WHERE topic_id = $1 AND last_offset >= $2 ORDER BY last_offset LIMIT $3;

-- name: pack_from
-- The first pack that holds an offset or comes after it.
SELECT last_offset, head, data FROM packs WHERE topic_id = $1 AND last_offset >= $2 ORDER BY last_offset LIMIT 1;

-- name: pack_head
-- The head of one pack.
SELECT head FROM packs WHERE id = $1;

-- name: pack_data
-- The data of one pack.
SELECT data FROM packs WHERE id = $1;

-- name: first_kept
-- The first pack that holds an offset or comes after it, without reading it.
SELECT first_offset, last_offset, messages, id FROM packs
WHERE topic_id = $1 AND last_offset >= $2 ORDER BY last_offset LIMIT 1;

-- name: settle
-- Messages are done (0) or not done any more (1).
INSERT INTO settlements (subscription_id, undone, offsets) VALUES ($1, $2, $3);

-- name: settlements
-- What of a subscription is not in its blocks yet, in order.
SELECT undone, offsets FROM settlements WHERE subscription_id = $1 ORDER BY id;

-- name: oldest_settlements
-- What is to be folded into blocks next.
SELECT id, subscription_id, undone, offsets FROM settlements ORDER BY id LIMIT $1;

-- name: forget_settlements_until
-- They are in the blocks now.
DELETE FROM settlements WHERE id <= $1;

-- name: forget_settlements
-- A seek replaces them.
DELETE FROM settlements WHERE subscription_id = $1;

-- name: blocks
-- Everything settled above the floor of a subscription.
SELECT block, bits FROM settled_blocks WHERE subscription_id = $1 ORDER BY block;

-- name: blocks_between
-- What is settled in a range of blocks, both ends included.
SELECT block, bits FROM settled_blocks WHERE subscription_id = $1 AND block BETWEEN $2 AND $3;

-- name: block_numbers_between
-- Which blocks there are in a range, both ends included.
SELECT block FROM settled_blocks WHERE subscription_id = $1 AND block BETWEEN $2 AND $3;

-- name: put_block
-- Write a block anew.
INSERT INTO settled_blocks (subscription_id, block, bits) VALUES ($1, $2, $3)
ON CONFLICT (subscription_id, block) DO UPDATE SET bits = excluded.bits;

-- name: delete_block
-- Nothing is settled in it, or no message of it is kept.
DELETE FROM settled_blocks WHERE subscription_id = $1 AND block = $2;

-- name: delete_blocks_below
-- The floor has passed them.
DELETE FROM settled_blocks WHERE subscription_id = $1 AND block < $2;

-- name: delete_blocks
-- A seek replaces them.
DELETE FROM settled_blocks WHERE subscription_id = $1;

-- name: troubles
-- What is known of single messages.
SELECT "offset", failures, not_before, error, steps_aside FROM troubles WHERE subscription_id = $1 ORDER BY "offset";

-- name: has_troubles
-- Whether there is anything to forget.
SELECT 1 FROM troubles WHERE subscription_id = $1 LIMIT 1;

-- name: note_trouble
-- Write down, or overwrite.
INSERT INTO troubles (subscription_id, "offset", failures, not_before, error, steps_aside) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (subscription_id, "offset") DO UPDATE SET
    failures = excluded.failures, not_before = excluded.not_before,
    error = excluded.error, steps_aside = excluded.steps_aside;

-- name: forget_trouble
-- The message is done, or has left its lane.
DELETE FROM troubles WHERE subscription_id = $1 AND "offset" = $2;

-- name: forget_troubles
-- A seek starts afresh.
DELETE FROM troubles WHERE subscription_id = $1;

-- name: forget_troubles_below
-- Clean-up of what the floor has passed.
DELETE FROM troubles WHERE subscription_id = $1 AND "offset" < $2;

-- name: paused_keys
-- Keys that wait for an operator.
SELECT lane, reason FROM paused_keys WHERE subscription_id = $1 ORDER BY lane;

-- name: pause_key
-- Or give another reason.
INSERT INTO paused_keys (subscription_id, lane, reason) VALUES ($1, $2, $3)
ON CONFLICT (subscription_id, lane) DO UPDATE SET reason = excluded.reason;

-- name: resume_key
-- Nothing is left of the pause.
DELETE FROM paused_keys WHERE subscription_id = $1 AND lane = $2;

-- name: dead_letters
-- Messages that left their lanes undelivered.
SELECT "offset", key, attempts, time, error, copy_topic_id, copy_offset, overtaken
FROM dead_letters WHERE subscription_id = $1 ORDER BY "offset";

-- name: bury
-- Or overwrite what is known of the dead letter.
INSERT INTO dead_letters (subscription_id, "offset", key, attempts, time, error, copy_topic_id, copy_offset, overtaken)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)
ON CONFLICT (subscription_id, "offset") DO UPDATE SET
    key = excluded.key, attempts = excluded.attempts, time = excluded.time, error = excluded.error,
    copy_topic_id = excluded.copy_topic_id, copy_offset = excluded.copy_offset, overtaken = excluded.overtaken;

-- name: overtake
-- A later message of its key is settled.
UPDATE dead_letters SET overtaken = true WHERE subscription_id = $1 AND "offset" = $2;

-- name: forget_dead_letter
-- It went back to its place, or was given up.
DELETE FROM dead_letters WHERE subscription_id = $1 AND "offset" = $2;

-- name: buried_between
-- The dead letters in a range of a topic, of any subscription, both ends included.
SELECT dead_letters."offset" FROM dead_letters JOIN subscriptions ON subscriptions.id = dead_letters.subscription_id
WHERE subscriptions.topic_id = $1 AND dead_letters."offset" BETWEEN $2 AND $3;

-- name: readers
-- Every registered reader.
SELECT name, topic_id, position FROM readers ORDER BY name;

-- name: reader
-- No row when there is no such reader.
SELECT name, topic_id, position FROM readers WHERE name = $1;

-- name: reader_positions
-- How far the readers of a topic are, and since when they read.
SELECT position, since FROM readers WHERE topic_id = $1;

-- name: put_reader
-- Register a reader, or move it. One that stays with its topic has read it since it was first registered.
INSERT INTO readers (name, topic_id, position, since) VALUES ($1, $2, $3, $4)
ON CONFLICT (name) DO UPDATE SET topic_id = excluded.topic_id, position = excluded.position,
    since = CASE WHEN readers.topic_id = excluded.topic_id THEN readers.since ELSE excluded.since END;

-- name: delete_reader
-- It pins nothing any more.
DELETE FROM readers WHERE name = $1 RETURNING name;

-- name: snapshots
-- Every snapshot.
SELECT name, topic_id, cursor, expires, options FROM snapshots ORDER BY name;

-- name: snapshot
-- No row when there is no such snapshot.
SELECT name, topic_id, cursor, expires, options FROM snapshots WHERE name = $1;

-- name: snapshot_cursors
-- What the snapshots of a topic have settled.
SELECT cursor FROM snapshots WHERE topic_id = $1;

-- name: put_snapshot
-- Keep a cursor by name, or replace it.
INSERT INTO snapshots (name, topic_id, cursor, expires, options) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (name) DO UPDATE SET
    topic_id = excluded.topic_id, cursor = excluded.cursor, expires = excluded.expires, options = excluded.options;

-- name: documents
-- Every document of a kind.
SELECT name, text FROM documents WHERE kind = $1 ORDER BY name;

-- name: put_document
-- Keep a document, or replace it.
INSERT INTO documents (kind, name, text) VALUES ($1, $2, $3)
ON CONFLICT (kind, name) DO UPDATE SET text = excluded.text;

-- name: delete_document
-- Forget a document.
DELETE FROM documents WHERE kind = $1 AND name = $2 RETURNING name;

-- name: delete_snapshot
-- It pins nothing any more.
DELETE FROM snapshots WHERE name = $1 RETURNING name;

-- name: delete_expired_snapshots
-- Their time is over.
DELETE FROM snapshots WHERE expires <= $1;

-- name: batches_of_writer
-- What a writer has written; no row when it never wrote.
SELECT batches FROM writers WHERE name = $1;

-- name: writers
-- Those whose names begin with a prefix.
SELECT name, batches FROM writers WHERE name >= $1 AND left(name, length($1)) = $1 ORDER BY name;

-- name: put_batches_of_writer
-- It has written one more.
INSERT INTO writers (name, batches) VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET batches = excluded.batches;

-- name: packs_after
-- One pack after another, whole.
SELECT id, first_offset, last_offset, messages, head, data FROM packs
WHERE topic_id = $1 AND first_offset > $2 ORDER BY first_offset, id LIMIT 1;

-- name: integrity
-- PostgreSQL itself checks a page when it is read; what can be told beside that is an index that is not whole.
SELECT 'index ' || pg_class.relname || ' is not valid: REINDEX it'
FROM pg_index JOIN pg_class ON pg_class.oid = pg_index.indexrelid
WHERE pg_class.relnamespace = current_schema()::regnamespace AND NOT pg_index.indisvalid;

-- name: dangling_rows
-- Rows that point to a topic or subscription that is not there.
SELECT 'packs', id, 'topics' FROM packs WHERE topic_id NOT IN (SELECT id FROM topics)
UNION ALL SELECT 'subscriptions', id, 'topics' FROM subscriptions WHERE topic_id NOT IN (SELECT id FROM topics)
UNION ALL SELECT 'readers', 0, 'topics' FROM readers WHERE topic_id NOT IN (SELECT id FROM topics)
UNION ALL SELECT 'snapshots', 0, 'topics' FROM snapshots WHERE topic_id NOT IN (SELECT id FROM topics)
UNION ALL SELECT 'settled_blocks', block, 'subscriptions' FROM settled_blocks
WHERE subscription_id NOT IN (SELECT id FROM subscriptions)
UNION ALL SELECT 'settlements', id, 'subscriptions' FROM settlements
WHERE subscription_id NOT IN (SELECT id FROM subscriptions)
UNION ALL SELECT 'troubles', "offset", 'subscriptions' FROM troubles
WHERE subscription_id NOT IN (SELECT id FROM subscriptions)
UNION ALL SELECT 'paused_keys', 0, 'subscriptions' FROM paused_keys
WHERE subscription_id NOT IN (SELECT id FROM subscriptions)
UNION ALL SELECT 'dead_letters', "offset", 'subscriptions' FROM dead_letters
WHERE subscription_id NOT IN (SELECT id FROM subscriptions);
