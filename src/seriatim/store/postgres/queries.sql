-- What only PostgreSQL is asked, or asked in words of its own, by name. What both dialects share is in ../sql/queries.sql.

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

-- name: remember_next_offset
-- Before the last packs of a topic are removed, so that no offset is given twice.
UPDATE topics SET next_offset = greatest(next_offset, $1) WHERE id = $2;

-- name: pass_offsets
-- A subscription has passed offsets that no message has: none may get them.
UPDATE topics SET next_offset = greatest(next_offset, $1)
WHERE id = (SELECT topic_id FROM subscriptions WHERE id = $2);

-- name: outbox
-- The first committed messages whose topics exist, up to a number of bytes.
SELECT id, topic, key, data, attributes::text FROM (
    SELECT outbox.*, sum(octet_length(data)) OVER (ORDER BY id) - octet_length(data) AS before
    FROM outbox WHERE EXISTS (SELECT FROM topics WHERE name = topic) ORDER BY id LIMIT $1
) AS first WHERE before < $2 ORDER BY id;

-- name: take_from_outbox
-- They are in the log now.
DELETE FROM outbox WHERE id = ANY($1) RETURNING id;

-- name: stage_pack
-- One pack of an attempt. It waits for the answer, so that no more than one pack is on its way.
INSERT INTO staged (attempt, place, writer, batch, head, data) VALUES ($1, $2, $3, $4, $5, $6) RETURNING place;

-- name: staged_heads
-- Some packs of an attempt, without their data.
SELECT place, head FROM staged WHERE attempt = $1 AND place > $2 ORDER BY place LIMIT $3;

-- name: append_staged_pack
-- A pack at the end of a log; its data is staged.
INSERT INTO packs (topic_id, first_offset, last_offset, messages, bytes, newest, leftover, head, data)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, data FROM staged WHERE attempt = $9 AND place = $10;

-- name: forget_staged
-- What was staged for a batch of a writer and those before it, and what killed writers left behind days ago.
DELETE FROM staged WHERE writer = $1 AND batch <= $2 OR since < now() - interval '7 days';

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

-- name: size
-- How many bytes the store takes.
SELECT coalesce(sum(pg_total_relation_size(pg_class.oid)), 0)::bigint FROM pg_class
JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE nspname = current_schema() AND relkind = 'r';
