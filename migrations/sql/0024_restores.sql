-- +goose Up
CREATE TABLE core.database_restores (
    restore_id  uuid PRIMARY KEY,
    restored_at timestamptz NOT NULL DEFAULT now(),
    restored_by text NOT NULL,
    positions   integer NOT NULL,
    lanes       integer NOT NULL
);
COMMENT ON TABLE core.database_restores IS 'Each time an operator said that the database was restored to an earlier time while Kafka was not (carril positions restored).';

GRANT SELECT, INSERT ON core.database_restores TO carril_app;
GRANT SELECT ON core.database_restores TO carril_readonly;

-- +goose Down
DROP TABLE core.database_restores;
