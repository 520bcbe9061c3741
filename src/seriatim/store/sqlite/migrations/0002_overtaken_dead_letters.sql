-- Whether a later message of a dead letter's key was settled: it can't go back to its place then.
ALTER TABLE dead_letters ADD COLUMN overtaken INTEGER NOT NULL DEFAULT 0;
