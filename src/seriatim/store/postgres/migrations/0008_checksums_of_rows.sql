-- Checksums of what decides which messages are delivered, and when. Options end with theirs.
ALTER TABLE subscriptions ADD COLUMN floor_checksum bigint;
ALTER TABLE troubles ADD COLUMN checksum bigint;
ALTER TABLE paused_keys ADD COLUMN checksum bigint;
ALTER TABLE dead_letters ADD COLUMN checksum bigint;

-- Rows that are there already have none until they are written again (``NO_CHECKSUM`` in ``state_checksums.py``).
UPDATE subscriptions SET floor_checksum = 4294967296;
UPDATE troubles SET checksum = 4294967296;
UPDATE paused_keys SET checksum = 4294967296;
UPDATE dead_letters SET checksum = CASE WHEN overtaken THEN -4294967297 ELSE 4294967296 END;
