-- Which messages have an id (publish once): one row for all that one transaction stored, by the number of all ids so far.
-- Ids outlive their messages, which may be settled and removed long before an id may be used again.
CREATE TABLE published_ids (
    topic_id bigint NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    number bigint NOT NULL,
    published double precision NOT NULL,
    ids text NOT NULL,
    numbers bytea NOT NULL,
    PRIMARY KEY (topic_id, number)
);
