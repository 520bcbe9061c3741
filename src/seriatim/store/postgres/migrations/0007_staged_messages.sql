-- Packed messages that wait to be appended, staged by processes that do not own the store, such as tasks of Spark on other machines.
-- They need not survive a crash of the server (UNLOGGED): until they are appended, they can be staged again.
CREATE UNLOGGED TABLE staged (
    attempt text COLLATE "C" NOT NULL,
    place bigint NOT NULL,
    writer text COLLATE "C" NOT NULL,
    batch bigint NOT NULL,
    since timestamptz NOT NULL DEFAULT now(),
    head bytea NOT NULL,
    data bytea NOT NULL,
    PRIMARY KEY (attempt, place)
);
CREATE INDEX staged_by_writer ON staged (writer, batch);
