// Package code holds queries as the product's code does.
package code

const columns = `event_id, occurred_at`

const since = ` AND occurred_at > $2`

// Good is put together of constants.
const Good = `SELECT ` + columns + ` FROM core.tracked_events WHERE tenant_id = $1` + since

// Bad is too, and lacks its range.
const Bad = `SELECT ` + columns + ` FROM core.tracked_events WHERE tenant_id = $1`

// Excused says why.
const Excused = Note + Bad

// Note is a comment.
const Note = `-- all partitions: nobody knows when
`

// Fragment is no statement.
func Fragment() string { return `select from where core.tracked_events` }

// Words only mention the table.
const Words = "core.tracked_events is where events are"

// Local is inside a function.
func Local() string {
	const sql = `DELETE FROM core.tracked_events WHERE event_id = $1`
	return sql
}
