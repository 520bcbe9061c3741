-- Which messages have an id (publish once): one row for all that one transaction stored, by the number of all ids so far.
-- Ids outlive their messages, which may be settled and removed long before an id may be used again.
CREATE TABLE published_ids (
    topic_id INTEGER NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    published REAL NOT NULL,
    ids TEXT NOT NULL,
    numbers BLOB NOT NULL,
    PRIMARY KEY (topic_id, number)
) WITHOUT ROWID;
