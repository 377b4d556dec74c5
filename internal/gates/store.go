package gates

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/mail"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/softcrum/carril/internal/oneline"
)

// ErrNone says that there is no such row of the tenant's.
var ErrNone = errors.New("gates: there is none")

// Store keeps what the gates go by: consents, suppressions and senders.
type Store struct{ pool *pgxpool.Pool }

// NewStore makes a store over a pool.
func NewStore(pool *pgxpool.Pool) *Store { return &Store{pool} }

// Who names a contact by its id, or by an identifier of a kind in normalised
// form.
type Who struct {
	ContactID uuid.UUID
	Kind      string // external_id, email, phone; empty: by ContactID
	Value     string
}

// Consent is what a person has said of one purpose on one channel.
type Consent struct {
	ContactID uuid.UUID `json:"contact_id"`
	Channel   string    `json:"channel"`
	Purpose   string    `json:"purpose"`
	Granted   bool      `json:"granted"`
	Source    string    `json:"source"`
	ChangedAt time.Time `json:"changed_at"`
}

// Said is a consent to be written: of whom, what.
type Said struct {
	Who
	Channel, Purpose string
	Granted          bool
	Source           string // who or what heard it: a form, an import
}

// SetConsents writes what people said, each as a change of its own; a saying
// that repeats the newest one is not written. Contacts come in the order of
// what was said, uuid.Nil where there is no such contact.
func (s *Store) SetConsents(ctx context.Context, tenant uuid.UUID, said []Said) ([]uuid.UUID, error) {
	n := len(said)
	contacts, kinds, values := make([]uuid.UUID, n), make([]string, n), make([]string, n)
	channels, purposes, sources, granted := make([]string, n), make([]string, n), make([]string, n), make([]bool, n)
	for i, c := range said {
		contacts[i], kinds[i], values[i] = c.ContactID, c.Kind, c.Value
		channels[i], purposes[i], sources[i], granted[i] = c.Channel, c.Purpose, c.Source, c.Granted
	}
	found := make([]uuid.UUID, n)
	err := pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		const find = `SELECT coalesce(i.contact_id, c.contact_id, '00000000-0000-0000-0000-000000000000')
FROM unnest($2::uuid[], $3::text[], $4::text[]) WITH ORDINALITY AS u(contact, kind, value, n)
LEFT JOIN core.contact_identifiers i ON u.kind <> '' AND i.tenant_id = $1 AND i.kind = u.kind AND i.value = u.value
LEFT JOIN core.contacts c ON u.kind = '' AND c.tenant_id = $1 AND c.contact_id = u.contact AND c.erased_at IS NULL
ORDER BY n`
		rows, err := tx.Query(ctx, find, tenant, contacts, kinds, values)
		if err != nil {
			return err
		}
		if found, err = pgx.CollectRows(rows, pgx.RowTo[uuid.UUID]); err != nil {
			return err
		}
		// One after the other: the same person may be in it twice, and the last word counts.
		const write = `INSERT INTO messaging.consents (tenant_id, contact_id, channel, purpose, granted, source, changed_at)
SELECT $1, $2, $3, $4, $5, $6, clock_timestamp()
WHERE $5 IS DISTINCT FROM (SELECT k.granted FROM messaging.consents k
    WHERE k.tenant_id = $1 AND k.contact_id = $2 AND k.channel = $3 AND k.purpose = $4 ORDER BY k.changed_at DESC LIMIT 1)`
		b := &pgx.Batch{}
		for i, contact := range found {
			if contact != uuid.Nil {
				b.Queue(write, tenant, contact, channels[i], purposes[i], granted[i], sources[i])
			}
		}
		return tx.SendBatch(ctx, b).Close()
	})
	if err != nil {
		return nil, fmt.Errorf("write %d consents: %w", n, err)
	}
	return found, nil
}

// Consents gives every change of a contact's consents, the newest first.
func (s *Store) Consents(ctx context.Context, tenant, contact uuid.UUID) ([]Consent, error) {
	rows, err := s.pool.Query(ctx, `SELECT contact_id, channel, purpose, granted, source, changed_at FROM messaging.consents
WHERE tenant_id = $1 AND contact_id = $2 ORDER BY changed_at DESC, channel, purpose LIMIT 1000`, tenant, contact)
	if err != nil {
		return nil, fmt.Errorf("read consents: %w", err)
	}
	list, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Consent])
	if err != nil {
		return nil, fmt.Errorf("read consents: %w", err)
	}
	for i := range list {
		list[i].ChangedAt = list[i].ChangedAt.UTC()
	}
	return list, nil
}

// Suppression is an address that gets nothing more.
type Suppression struct {
	Channel   string     `json:"channel"`
	Address   string     `json:"address"`
	Reason    string     `json:"reason"`
	SendID    *uuid.UUID `json:"send_id,omitempty"` // whose bounce or complaint it was
	CreatedAt time.Time  `json:"created_at"`
}

// Suppress suppresses a normalised address, and gives what stands: the first
// reason stays.
func (s *Store) Suppress(ctx context.Context, tenant uuid.UUID, channel, address, reason string) (Suppression, error) {
	const sql = `INSERT INTO messaging.suppressions (tenant_id, channel, address, reason) VALUES ($1, $2, $3, $4)
ON CONFLICT (tenant_id, channel, address) DO UPDATE SET reason = suppressions.reason
RETURNING channel, address, reason, send_id, created_at`
	rows, err := s.pool.Query(ctx, sql, tenant, channel, address, reason)
	if err != nil {
		return Suppression{}, fmt.Errorf("suppress an address: %w", err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[Suppression])
	if err != nil {
		return out, fmt.Errorf("suppress an address: %w", err)
	}
	out.CreatedAt = out.CreatedAt.UTC()
	return out, nil
}

// Because lists why a suppression may be taken away.
func Because() []string { return []string{"address_fixed", "consent_given", "mistake"} }

// Lift takes the suppression of a normalised address away and writes down who
// did it and why; ErrNone where there is none.
func (s *Store) Lift(ctx context.Context, tenant uuid.UUID, channel, address, because, by string) error {
	hash := sha256.Sum256(fmt.Appendf(nil, "%s %s %s", tenant, channel, address))
	const sql = `WITH gone AS (
    DELETE FROM messaging.suppressions WHERE tenant_id = $1 AND channel = $2 AND address IN ($3, core.erased_address($1, $2, $3)) RETURNING reason
) INSERT INTO messaging.suppression_lifts (tenant_id, channel, address_hash, reason, because, lifted_by) SELECT $1, $2, $4, reason, $5, $6 FROM gone`
	tag, err := s.pool.Exec(ctx, sql, tenant, channel, address, hash[:], because, by)
	if err != nil {
		return fmt.Errorf("lift a suppression: %w", err)
	}
	if tag.RowsAffected() == 0 {
		return ErrNone
	}
	return nil
}

// Sender is whom a tenant's messages on a channel come from.
type Sender struct {
	Channel     string     `json:"channel"`
	Sender      string     `json:"sender"` // an address, with a name before it or not
	ReplyTo     *string    `json:"reply_to,omitempty"`
	Domain      string     `json:"domain"`
	Verified    bool       `json:"verified"` // by an operator; nothing is sent before
	PausedAt    *time.Time `json:"paused_at,omitempty"`
	PauseReason *string    `json:"pause_reason,omitempty"`
	ChangedAt   time.Time  `json:"changed_at"`
}

const maxSender = 320 // bytes of a sender, its name included

// CheckSender reads an email sender's address and its reply-to; the domain is
// what must be verified.
func CheckSender(sender string, replyTo *string) (domain string, err error) {
	a, err := mail.ParseAddress(sender)
	if err != nil || !oneline.Fits(sender, maxSender) {
		return "", errors.New("a sender is an address, with a name before it or not: Shop <shop@example.com>")
	}
	normal, ok := Normalize("email", a.Address)
	if !ok {
		return "", errors.New("the address of the sender is none that mail can be sent from")
	}
	if replyTo != nil {
		if _, ok := Normalize("email", *replyTo); !ok {
			return "", errors.New("reply_to is a bare address")
		}
	}
	return normal[strings.LastIndexByte(normal, '@')+1:], nil
}

const senderColumns = `channel, sender, reply_to, domain, verified, paused_at, pause_reason, changed_at`

// PutSender sets a tenant's sender. One of another domain is not verified any
// more.
func (s *Store) PutSender(ctx context.Context, tenant uuid.UUID, channel, sender string, replyTo *string, domain string) (Sender, error) {
	const sql = `INSERT INTO messaging.senders AS old (tenant_id, channel, sender, reply_to, domain) VALUES ($1, $2, $3, $4, $5)
ON CONFLICT (tenant_id, channel) DO UPDATE SET sender = $3, reply_to = $4, domain = $5, changed_at = now(), verified = old.verified AND old.domain = $5
RETURNING ` + senderColumns
	return s.sender(ctx, sql, tenant, channel, sender, replyTo, domain)
}

// VerifySender says that the domain is the tenant's, and lets a paused sender
// go on; ErrNone where the tenant has no sender of that domain.
func (s *Store) VerifySender(ctx context.Context, tenant uuid.UUID, channel, domain string) (Sender, error) {
	const sql = `UPDATE messaging.senders SET verified = true, paused_at = NULL, pause_reason = NULL, changed_at = now()
WHERE tenant_id = $1 AND channel = $2 AND domain = $3 RETURNING ` + senderColumns
	return s.sender(ctx, sql, tenant, channel, domain)
}

// PauseSender stops a tenant's messages of a channel until ResumeSender.
func (s *Store) PauseSender(ctx context.Context, tenant uuid.UUID, channel, reason string) (Sender, error) {
	const sql = `UPDATE messaging.senders SET paused_at = coalesce(paused_at, now()), pause_reason = coalesce(pause_reason, $3), changed_at = now()
WHERE tenant_id = $1 AND channel = $2 RETURNING ` + senderColumns
	return s.sender(ctx, sql, tenant, channel, reason)
}

// ResumeSender lets a paused sender go on: what was held is sent.
func (s *Store) ResumeSender(ctx context.Context, tenant uuid.UUID, channel string) (Sender, error) {
	const sql = `UPDATE messaging.senders SET paused_at = NULL, pause_reason = NULL, changed_at = now()
WHERE tenant_id = $1 AND channel = $2 RETURNING ` + senderColumns
	return s.sender(ctx, sql, tenant, channel)
}

func (s *Store) sender(ctx context.Context, sql string, args ...any) (Sender, error) {
	rows, err := s.pool.Query(ctx, sql, args...)
	if err != nil {
		return Sender{}, fmt.Errorf("write a sender: %w", err)
	}
	out, err := pgx.CollectExactlyOneRow(rows, scanSender)
	if errors.Is(err, pgx.ErrNoRows) {
		return out, ErrNone
	}
	if err != nil {
		return out, fmt.Errorf("write a sender: %w", err)
	}
	return out, nil
}

func scanSender(row pgx.CollectableRow) (Sender, error) {
	out, err := pgx.RowToStructByPos[Sender](row)
	out.ChangedAt = out.ChangedAt.UTC()
	if out.PausedAt != nil {
		out.PausedAt = new(out.PausedAt.UTC())
	}
	return out, err
}

// Senders gives a tenant's senders, by channel.
func (s *Store) Senders(ctx context.Context, tenant uuid.UUID) ([]Sender, error) {
	rows, err := s.pool.Query(ctx, `SELECT `+senderColumns+` FROM messaging.senders WHERE tenant_id = $1 ORDER BY channel`, tenant)
	if err != nil {
		return nil, fmt.Errorf("list senders: %w", err)
	}
	list, err := pgx.CollectRows(rows, scanSender)
	if err != nil {
		return nil, fmt.Errorf("list senders: %w", err)
	}
	return list, nil
}
