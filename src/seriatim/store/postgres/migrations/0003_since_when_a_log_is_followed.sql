-- The next offset of the topic when a subscription or reader began: what is below was published before it.
-- Of those that are there already it is not known. What they have settled or passed from the start is kept, not deleted.
ALTER TABLE subscriptions ADD COLUMN since bigint NOT NULL DEFAULT 0;
UPDATE subscriptions SET since = floor;
ALTER TABLE readers ADD COLUMN since bigint NOT NULL DEFAULT 0;
UPDATE readers SET since = position;
