package intake

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// event400 is an event of 400 bytes, as a point of sale sends it.
const event400 = `{"event_name":"invoice.paid","idempotency_key":"pos-17/invoice-000889","occurred_at":"2026-11-01T01:30:00.123-05:00",` +
	`"identifiers":{"external_id":"c-102938","email":"ana.perez@example.com"},"properties":{"invoice_id":"889","total":182500.50,"currency":"COP",` +
	`"items":[{"sku":"A-1","qty":2,"price":41250.25},{"sku":"B-77","qty":1,"price":100000}],"store":"Bogotá Norte","paid":true},"correlation_id":"checkout-5512af"}`

func TestTheBenchmarkedEventIsTypical(t *testing.T) {
	require.InDelta(t, 400, len(event400), 20)
	mustOne(t, Track, event400, caller())
}

func BenchmarkOne(b *testing.B) {
	p, c, body := NewParser(), caller(), []byte(event400)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.One(Track, body, c); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkBatch500(b *testing.B) {
	p, c, body := NewParser(), caller(), []byte(batchOf(items(500)...))
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Batch(body, c); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkHostile is the input that costs most for its size: many keys that
// differ late.
func BenchmarkHostile(b *testing.B) {
	p, c, body := NewParser(), caller(), []byte(properties(manyKeys(2_500)))
	require.Less(b, len(body), MaxEventBytes)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.One(Track, body, c); err != nil {
			b.Fatal(err)
		}
	}
}
