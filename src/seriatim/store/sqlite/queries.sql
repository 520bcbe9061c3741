-- What only SQLite is asked, or asked in words of its own, by name. What both dialects share is in ../sql/queries.sql. Values are given in the order of the question marks.

-- name: application_id
-- The mark that makes a file ours.
PRAGMA application_id;

-- name: table_names
-- What is in the file: nothing in a new one.
SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite~_%' ESCAPE '~';

-- name: create_migrations
-- Which migrations have been applied.
CREATE TABLE migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL);

-- name: skip_epochs
-- After a restore: the lost store may have had later owners.
UPDATE store SET epoch = epoch + ?;

-- name: topics
-- Every topic, with the offset above all that it ever held.
SELECT id, name, options, max(next_offset, coalesce((
    SELECT last_offset + 1 FROM packs WHERE topic_id = topics.id ORDER BY last_offset DESC LIMIT 1
), 0))
FROM topics ORDER BY id;

-- name: next_offset
-- The offset above all that a topic ever held; no row when there is no such topic.
SELECT max(next_offset, coalesce((
    SELECT last_offset + 1 FROM packs WHERE topic_id = topics.id ORDER BY last_offset DESC LIMIT 1
), 0))
FROM topics WHERE id = ?;

-- name: skip_offsets
-- After a restore: the lost store may have given later offsets.
UPDATE topics SET next_offset = ? + max(next_offset, coalesce((
    SELECT last_offset + 1 FROM packs WHERE topic_id = topics.id ORDER BY last_offset DESC LIMIT 1
), 0));

-- name: remember_next_offset
-- Before the last packs of a topic are removed, so that no offset is given twice.
UPDATE topics SET next_offset = max(next_offset, ?) WHERE id = ?;

-- name: pass_offsets
-- A subscription has passed offsets that no message has: none may get them.
UPDATE topics SET next_offset = max(next_offset, ?)
WHERE id = (SELECT topic_id FROM subscriptions WHERE id = ?);

-- name: integrity
-- SQLite's own look at every page and index.
PRAGMA integrity_check;

-- name: dangling_rows
-- Rows that point to a topic or subscription that is not there.
PRAGMA foreign_key_check;

-- name: free_pages
-- Pages of the file that hold nothing.
PRAGMA freelist_count;

-- name: all_pages
-- The size of the file in pages.
PRAGMA page_count;

-- name: write_ahead_log
-- Readers and the writer do not wait for each other; says which mode it is in.
PRAGMA journal_mode = WAL;

-- name: size
-- How many bytes the store takes.
SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size();
