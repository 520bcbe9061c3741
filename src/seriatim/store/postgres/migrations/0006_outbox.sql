-- Messages that other programs publish inside transactions of their own. The owner appends what is committed to the log, in the
-- order of the ids, and deletes it here.
CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    topic text COLLATE "C" NOT NULL,
    key text COLLATE "C" CHECK (octet_length(key) BETWEEN 1 AND 1024),
    data bytea NOT NULL,
    attributes jsonb CHECK (jsonb_typeof(attributes) = 'object'),
    CHECK (octet_length(data) + coalesce(octet_length(attributes::text), 0) <= 10485760)
);

CREATE FUNCTION check_attributes(attributes jsonb) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog AS $$
BEGIN
    IF EXISTS (
        SELECT FROM jsonb_each($1) AS pair
        WHERE jsonb_typeof(pair.value) <> 'string' OR octet_length(pair.value #>> '{}') > 1024
            OR octet_length(pair.key) NOT BETWEEN 1 AND 256
    ) THEN
        RAISE EXCEPTION 'attributes must be texts: names of 1 to 256 bytes, values of at most 1024'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
END;
$$;

-- The lock of a key lasts until the end of the caller's transaction. Whoever publishes the same key waits for it and gets a later
-- id, so within a key ids rise in the order of the commits. Every name in the function has its schema, so that it does the same
-- whatever search path its caller has; setting one would cost as much as the insert. The lock is taken in an expression, and the
-- topic is looked up by the insert, because each statement of a function costs a part of that, too.
DO $do$ BEGIN EXECUTE format($create$
    CREATE FUNCTION publish(topic text, data bytea, key text DEFAULT NULL, attributes jsonb DEFAULT NULL) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER AS $body$
    BEGIN
        IF $4 IS NOT NULL THEN
            PERFORM %1$I.check_attributes($4);
        END IF;
        IF pg_catalog.pg_advisory_xact_lock(
            pg_catalog.hashtextextended($3, pg_catalog.hashtextextended($1, %2$s))
        ) IS NULL THEN
            NULL;  -- there is no key, and nothing to lock
        END IF;
        INSERT INTO %1$I.outbox (topic, key, data, attributes)
            SELECT $1, $3, $2, $4 FROM %1$I.topics WHERE topics.name OPERATOR(pg_catalog.=) $1;
        IF NOT FOUND THEN
            RAISE EXCEPTION 'topic "%%" does not exist', $1 USING ERRCODE = 'undefined_object';
        END IF;
    END;
    $body$
$create$, current_schema(), 'outbox'::regclass::oid); END $do$;
