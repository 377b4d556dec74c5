package jsonscan_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/softcrum/carril/internal/jsonscan"
)

// event400 is an event of 400 bytes, as a point of sale sends it.
const event400 = `{"event_name":"invoice.paid","idempotency_key":"pos-17/invoice-000889","occurred_at":"2026-11-01T01:30:00.123-05:00",` +
	`"identifiers":{"external_id":"c-102938","email":"ana.perez@example.com"},"properties":{"invoice_id":"889","total":182500.50,"currency":"COP",` +
	`"items":[{"sku":"A-1","qty":2,"price":41250.25},{"sku":"B-77","qty":1,"price":100000}],"store":"Bogotá Norte","paid":true},"correlation_id":"checkout-5512af"}`

// BenchmarkScan is the scanner alone, beside the library's validity check,
// which looks for less.
func BenchmarkScan(b *testing.B) {
	body := []byte(event400)
	b.Run("Scanner", func(b *testing.B) {
		var s jsonscan.Scanner
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			s.Reset(body)
			if s.Value(0, 1) < 0 || s.Soft.Code != "" {
				b.Fatal(s.Soft)
			}
		}
	})
	b.Run("JSONValid", func(b *testing.B) {
		b.SetBytes(int64(len(body)))
		for b.Loop() {
			if !json.Valid(body) {
				b.Fatal()
			}
		}
	})
	b.Run("JSONUnmarshal", func(b *testing.B) {
		var ev struct {
			EventName      string            `json:"event_name"`
			IdempotencyKey string            `json:"idempotency_key"`
			OccurredAt     time.Time         `json:"occurred_at"`
			Identifiers    map[string]string `json:"identifiers"`
			Properties     json.RawMessage   `json:"properties"`
			CorrelationID  string            `json:"correlation_id"`
		}
		b.SetBytes(int64(len(body)))
		b.ReportAllocs()
		for b.Loop() {
			if err := json.Unmarshal(body, &ev); err != nil {
				b.Fatal(err)
			}
		}
	})
}
