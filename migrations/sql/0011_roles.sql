-- +goose Up
-- +goose StatementBegin
DO $$
DECLARE r text;
BEGIN
    FOREACH r IN ARRAY ARRAY['carril_app', 'carril_eraser', 'carril_readonly'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE', r);
        EXCEPTION
            WHEN duplicate_object OR unique_violation THEN NULL; -- roles belong to the cluster: another database made it
        END;
    END LOOP;
END $$;
-- +goose StatementEnd
GRANT USAGE ON SCHEMA core, messaging TO carril_app, carril_eraser, carril_readonly;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA core, messaging TO carril_app;
REVOKE UPDATE, DELETE ON core.tracked_events, core.points_ledger, messaging.send_status_history, messaging.gate_events FROM carril_app;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA core, messaging TO carril_app;
GRANT SELECT ON ALL TABLES IN SCHEMA core, messaging TO carril_readonly;
REVOKE SELECT ON core.api_keys, core.webhook_endpoints FROM carril_readonly;
GRANT SELECT, UPDATE ON core.tracked_events TO carril_eraser;

-- +goose Down
REVOKE ALL ON ALL TABLES IN SCHEMA core, messaging FROM carril_app, carril_eraser, carril_readonly;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA core, messaging FROM carril_app;
REVOKE ALL ON SCHEMA core, messaging FROM carril_app, carril_eraser, carril_readonly;
