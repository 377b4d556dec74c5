-- +goose Up
CREATE TABLE core.database_restores (
    restore_id  uuid PRIMARY KEY,
    restored_at timestamptz NOT NULL DEFAULT now(),
    restored_by text NOT NULL,
    positions   integer NOT NULL,
    lanes       integer NOT NULL
);
COMMENT ON TABLE core.database_restores IS 'Each time an operator said that the database was restored to an earlier time while Kafka was not (carril positions restored).';

CREATE TABLE core.outbox_incarnations (
    lane        integer NOT NULL REFERENCES core.outbox_lanes,
    incarnation integer NOT NULL,
    safe_seq    bigint NOT NULL,
    ended_at    timestamptz NOT NULL DEFAULT now(),
    restore_id  uuid NOT NULL REFERENCES core.database_restores,
    PRIMARY KEY (lane, incarnation)
);
COMMENT ON TABLE core.outbox_incarnations IS 'Where a lane stood when an incarnation of it ended: sequences up to safe_seq mean the same before and after, later ones were given out twice. A cursor of an older incarnation goes on from there.';

GRANT SELECT, INSERT ON core.database_restores, core.outbox_incarnations TO carril_app;
GRANT SELECT ON core.database_restores, core.outbox_incarnations TO carril_readonly;

-- +goose Down
DROP TABLE core.outbox_incarnations, core.database_restores;
