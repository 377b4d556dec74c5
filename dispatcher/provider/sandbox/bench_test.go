package sandbox_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/uuid"

	"github.com/softcrum/carril/dispatcher/provider"
	"github.com/softcrum/carril/dispatcher/provider/sandbox"
)

// BenchmarkSend sends through the adapter to the sandbox, so a request costs the
// client's side too; with -cpu 1 both share one core.
func BenchmarkSend(b *testing.B) {
	for _, size := range []int{1, 100} {
		b.Run(fmt.Sprint("Batch", size), func(b *testing.B) {
			s := start(b, sandbox.Config{Rate: 1_000_000_000}, sandbox.Deps{})
			a := newAdapter(b, s.URL())
			msgs := make([]provider.Message, size)
			for i := range msgs {
				msgs[i] = provider.Message{
					SendID: uuid.New(), TenantID: uuid.New(), From: "Shop <shop@example.com>", To: "ana@example.com",
					Subject: "Your receipt", HTML: "<p>Thank you.</p>", Text: "Thank you.",
				}
			}
			f, err := a.Freeze(msgs, size > 1)
			if err != nil {
				b.Fatal(err)
			}
			b.ResetTimer()
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					r := provider.Request{Frozen: f, IdempotencyKey: uuid.NewString()}
					if _, err := a.Send(context.Background(), r); err != nil {
						b.Error(err)
						return
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "requests/s")
		})
	}
}
