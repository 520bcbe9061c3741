-- The first schema: topics as logs of packs, subscriptions as cursors, and what is known of single messages.
-- Text is compared byte by byte (COLLATE "C"), so that every server lists names in the same order.

-- One row: the epoch of the owner, and the lowest fencing token that was never given out.
CREATE TABLE store (
    one boolean PRIMARY KEY CHECK (one),
    epoch bigint NOT NULL,
    next_token bigint NOT NULL
);
INSERT INTO store (one, epoch, next_token) VALUES (true, 0, 0);

-- The mark that makes a schema ours.
COMMENT ON TABLE store IS 'Seriatim';

-- One row: who owns the store, and when the lease was last renewed (NULL: it was given back). A table of its own, because every
-- transaction locks the row of the table store, and the lease must be renewed beside it.
CREATE TABLE owner (
    one boolean PRIMARY KEY CHECK (one),
    epoch bigint NOT NULL,
    process bigint NOT NULL,
    host text NOT NULL,
    application text NOT NULL,
    lease double precision NOT NULL,
    renewed timestamptz
);
INSERT INTO owner (one, epoch, process, host, application, lease, renewed) VALUES (true, 0, 0, '', '', 0, NULL);

-- Locks the epoch until the end of the transaction, and fails when it is not the caller's any more. It fails inside the
-- database, so that the owner can send a whole transaction with its commit and need not wait for this answer first.
CREATE FUNCTION hold_epoch(mine bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM store WHERE epoch = mine FOR UPDATE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'another process has taken the store over' USING ERRCODE = 'SE001';
    END IF;
END
$$;

-- next_offset is only raised when packs are removed: it is above every offset that is no longer kept.
CREATE TABLE topics (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    options text NOT NULL,
    next_offset bigint NOT NULL
);

-- The messages of one append call, or what was left over of several. Packs of a topic do not overlap.
CREATE TABLE packs (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id bigint NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    first_offset bigint NOT NULL,
    last_offset bigint NOT NULL,
    messages bigint NOT NULL,
    bytes bigint NOT NULL,
    newest double precision NOT NULL,
    leftover boolean NOT NULL,
    head bytea NOT NULL,
    data bytea NOT NULL
);
CREATE UNIQUE INDEX packs_in_order ON packs (topic_id, last_offset);

CREATE TABLE subscriptions (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic_id bigint NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    options text NOT NULL,
    floor bigint NOT NULL,
    UNIQUE (topic_id, name)
);

-- What is settled above the floor: bitmaps of 4096 offsets each.
CREATE TABLE settled_blocks (
    subscription_id bigint NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    block bigint NOT NULL,
    bits bytea NOT NULL,
    PRIMARY KEY (subscription_id, block)
);

-- What was settled, or unsettled again, since the blocks were last written: one row a call, in order.
CREATE TABLE settlements (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    subscription_id bigint NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    undone bigint NOT NULL,
    offsets bytea NOT NULL
);
CREATE INDEX settlements_of_subscription ON settlements (subscription_id);

CREATE TABLE troubles (
    subscription_id bigint NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    "offset" bigint NOT NULL,
    failures bigint NOT NULL,
    not_before double precision NOT NULL,
    error text,
    steps_aside boolean NOT NULL,
    PRIMARY KEY (subscription_id, "offset")
);

-- lane is the key after a colon, and empty for messages without a key, because NULL is not unique.
CREATE TABLE paused_keys (
    subscription_id bigint NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    lane text COLLATE "C" NOT NULL,
    reason text,
    PRIMARY KEY (subscription_id, lane)
);

CREATE TABLE dead_letters (
    subscription_id bigint NOT NULL REFERENCES subscriptions (id) ON DELETE CASCADE,
    "offset" bigint NOT NULL,
    key text,
    attempts bigint NOT NULL,
    time double precision NOT NULL,
    error text,
    copy_topic_id bigint,
    copy_offset bigint,
    overtaken boolean NOT NULL,
    PRIMARY KEY (subscription_id, "offset")
);

CREATE TABLE readers (
    name text COLLATE "C" PRIMARY KEY,
    topic_id bigint NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    position bigint NOT NULL
);
CREATE INDEX readers_of_topic ON readers (topic_id);

CREATE TABLE snapshots (
    name text COLLATE "C" PRIMARY KEY,
    topic_id bigint NOT NULL REFERENCES topics (id) ON DELETE CASCADE,
    cursor bytea NOT NULL,
    expires double precision NOT NULL,
    options text NOT NULL
);
CREATE INDEX snapshots_of_topic ON snapshots (topic_id);

-- The batches that a writer has written, as a JSON list of inclusive ranges.
CREATE TABLE writers (
    name text COLLATE "C" PRIMARY KEY,
    batches text NOT NULL
);
