-- Settlements are few, because clean-up folds them every second: an index on them is one more page to write in each commit,
-- and saves nobody anything.
DROP INDEX settlements_of_subscription;
