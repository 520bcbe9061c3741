-- The first schema: topics as logs of packs, subscriptions as cursors, and what is known of single messages.

-- The mark that makes a file ours: the letters SERI.
PRAGMA application_id = 1397051977;

-- One row: who owns the store, and the lowest fencing token that was never given out.
CREATE TABLE store (
    one INTEGER PRIMARY KEY CHECK (one = 1),
    epoch INTEGER NOT NULL,
    next_token INTEGER NOT NULL
);
INSERT INTO store (one, epoch, next_token) VALUES (1, 0, 0);

-- next_offset is only raised when packs are removed: it is above every offset that is no longer kept.
CREATE TABLE topics (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    name TEXT NOT NULL UNIQUE,
    options TEXT NOT NULL,
    next_offset INTEGER NOT NULL
);

-- The messages of one append call, or what was left over of several. Packs of a topic do not overlap.
-- The small columns come first and the data last, so that whoever reads less touches fewer pages.
CREATE TABLE packs (
    id INTEGER PRIMARY KEY,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    first_offset INTEGER NOT NULL,
    last_offset INTEGER NOT NULL,
    messages INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    newest REAL NOT NULL,
    leftover INTEGER NOT NULL,
    head BLOB NOT NULL,
    data BLOB NOT NULL
);
CREATE UNIQUE INDEX packs_in_order
ON packs (topic_id, last_offset, first_offset, messages, bytes, newest, leftover);

CREATE TABLE subscriptions (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    options TEXT NOT NULL,
    floor INTEGER NOT NULL,
    UNIQUE (topic_id, name)
);

-- What is settled above the floor: bitmaps of 4096 offsets each.
CREATE TABLE settled_blocks (
    subscription_id INTEGER NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    block INTEGER NOT NULL,
    bits BLOB NOT NULL,
    PRIMARY KEY (subscription_id, block)
) WITHOUT ROWID;

-- What was settled, or unsettled again, since the blocks were last written: one row a call, in order.
CREATE TABLE settlements (
    id INTEGER PRIMARY KEY,
    subscription_id INTEGER NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    undone INTEGER NOT NULL,
    offsets BLOB NOT NULL
);
CREATE INDEX settlements_of_subscription ON settlements (subscription_id);

CREATE TABLE troubles (
    subscription_id INTEGER NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    offset INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    not_before REAL NOT NULL,
    error TEXT,
    steps_aside INTEGER NOT NULL,
    PRIMARY KEY (subscription_id, offset)
) WITHOUT ROWID;

-- lane is the key after a colon, and empty for messages without a key, because NULL is not unique.
CREATE TABLE paused_keys (
    subscription_id INTEGER NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    lane TEXT NOT NULL,
    reason TEXT,
    PRIMARY KEY (subscription_id, lane)
) WITHOUT ROWID;

CREATE TABLE dead_letters (
    subscription_id INTEGER NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    offset INTEGER NOT NULL,
    key TEXT,
    attempts INTEGER NOT NULL,
    time REAL NOT NULL,
    error TEXT,
    copy_topic_id INTEGER,
    copy_offset INTEGER,
    PRIMARY KEY (subscription_id, offset)
) WITHOUT ROWID;

CREATE TABLE readers (
    name TEXT PRIMARY KEY,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    position INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX readers_of_topic ON readers (topic_id);

CREATE TABLE snapshots (
    name TEXT PRIMARY KEY,
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    cursor BLOB NOT NULL,
    expires REAL NOT NULL,
    options TEXT NOT NULL
);
CREATE INDEX snapshots_of_topic ON snapshots (topic_id);

-- The batches that a writer has written, as a JSON list of inclusive ranges.
CREATE TABLE writers (
    name TEXT PRIMARY KEY,
    batches TEXT NOT NULL
) WITHOUT ROWID;
