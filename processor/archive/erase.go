package archive

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/softcrum/carril/internal/db/processordb"
	"github.com/softcrum/carril/internal/storage"
)

// emptied says what an erased person's row keeps of its columns, by parent: what
// core.erase_events and core.erase_sends make of it in the database. A parent
// that is not here holds nothing of a person.
var emptied = map[string]map[string]json.RawMessage{
	"core.tracked_events": {"properties": json.RawMessage(`{}`), "idempotency_key": json.RawMessage(`""`)},
	"messaging.sends":     {"content": json.RawMessage(`null`), "address": json.RawMessage(`null`)},
}

// Erase takes people out of every export of leaves (FS-MSG-0003 §8): their rows
// stay as anonymous counts. open is how many exports could not be rewritten yet;
// the error says why, and a second call goes on with them.
func (a *Archive) Erase(ctx context.Context, tenant uuid.UUID, contacts []uuid.UUID) (open int, err error) {
	exports, err := processordb.New(a.deps.Pool).LeafExports(ctx)
	if err != nil {
		return 0, fmt.Errorf("list the exports of leaves: %w", err)
	}
	who := map[string]bool{}
	for _, c := range contacts {
		who[c.String()] = true
	}
	var errs []error
	for _, e := range exports {
		columns := emptied[e.Parent]
		if columns == nil {
			continue
		}
		err := a.Rewrite(ctx, e.Manifest, tenant, func(_ uuid.UUID, row []byte) ([]byte, bool, error) {
			changed, err := empty(row, who, columns)
			return changed, true, err
		})
		if err != nil && !errors.Is(err, storage.ErrNotFound) { // it was discarded meanwhile
			open++
			errs = append(errs, err)
		}
	}
	return open, errors.Join(errs...)
}

// empty empties the columns of a row that is about one of these people; any
// other row, and one that is empty already, comes back as it is.
func empty(row []byte, who map[string]bool, columns map[string]json.RawMessage) ([]byte, error) {
	var of struct {
		Contact string `json:"contact_id"`
	}
	if err := json.Unmarshal(row, &of); err != nil {
		return nil, fmt.Errorf("read a row: %w", err)
	}
	if !who[of.Contact] {
		return row, nil
	}
	var fields map[string]json.RawMessage // values keep their bytes, digits and all
	if err := json.Unmarshal(row, &fields); err != nil {
		return nil, fmt.Errorf("read a row: %w", err)
	}
	full := false
	for name, value := range columns {
		full = full || !bytes.Equal(fields[name], value)
		fields[name] = value
	}
	if !full {
		return row, nil
	}
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(fields); err != nil {
		return nil, fmt.Errorf("write a row: %w", err)
	}
	return bytes.TrimRight(out.Bytes(), "\n"), nil
}
