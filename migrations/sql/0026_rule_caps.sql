-- +goose Up
ALTER TABLE core.rules
    ADD COLUMN cap_count integer CHECK (cap_count > 0),
    ADD COLUMN cap_window text CHECK (cap_window IS NULL OR cap_count IS NOT NULL);
COMMENT ON COLUMN core.rules.cap_count IS 'How often the rule fires for one contact at most; null: no cap.';
COMMENT ON COLUMN core.rules.cap_window IS 'Within any time of this length by occurred_at, a duration with its unit; null: for ever.';
COMMENT ON TABLE core.rules IS 'On an event, if the CEL condition holds, do: points and notify. Versions are never changed: an event is judged by the newest one whose window holds its occurred_at, and the newest says whether the rule is on.';
CREATE TRIGGER append_only BEFORE UPDATE OR DELETE ON core.rules
    FOR EACH ROW EXECUTE FUNCTION core.refuse_change();
ALTER TABLE core.points_ledger
    ADD COLUMN rule_version integer,
    ADD COLUMN outcome text NOT NULL DEFAULT 'fired' CHECK (outcome IN ('fired', 'capped'));
COMMENT ON COLUMN core.points_ledger.outcome IS 'capped: the rule would have fired, but its cap for the contact was reached; the entry keeps a repeat of the event from firing later.';

-- +goose Down
ALTER TABLE core.points_ledger DROP COLUMN outcome, DROP COLUMN rule_version;
DROP TRIGGER append_only ON core.rules;
ALTER TABLE core.rules DROP COLUMN cap_window, DROP COLUMN cap_count;
