package ids

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestDerivedIDs(t *testing.T) {
	tenant := uuid.MustParse("0190aaaa-0000-7000-8000-000000000001")
	other := uuid.MustParse("0190aaaa-0000-7000-8000-000000000002")

	t.Run("SameKeySameIDOnAnyReplica", func(t *testing.T) {
		require.Equal(t, Event(tenant, "invoice-889"), Event(tenant, "invoice-889"))
		require.NotEqual(t, Event(tenant, "invoice-889"), Event(other, "invoice-889"))
	})
	t.Run("OneKeyOnTwoEndpointsNeverMeetsItself", func(t *testing.T) { // interleavings I33
		require.NotEqual(t, Event(tenant, "invoice-889"), Request(tenant, "invoice-889"))
	})
	t.Run("IsVersion8", func(t *testing.T) {
		id := Event(tenant, "k")
		require.EqualValues(t, 8, id.Version())
		require.Equal(t, uuid.RFC4122, id.Variant())
	})
	t.Run("ValueStaysWhatItWas", func(t *testing.T) {
		// Stored ids depend on it for ever: a change here is a change of every fence.
		require.Equal(t, "216cd755-3ffa-8ceb-9b1f-2fab4cfbad8d", Event(tenant, "invoice-889").String())
	})
}

func TestAppendTextIsTheText(t *testing.T) {
	id := uuid.New()
	require.Equal(t, "x"+id.String(), string(AppendText([]byte("x"), id)))
}

func TestSendIDCarriesItsTime(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		at := time.UnixMilli(rapid.Int64Range(0, 4102444800000).Draw(t, "ms")).UTC()
		id := Send(uuid.New(), uuid.New(), at, rapid.IntRange(0, 499).Draw(t, "recipient"), "email")
		require.Equal(t, at, Time(id))
		require.EqualValues(t, 8, id.Version())
		require.Equal(t, at, Time(Batch(id, at)))
		delivery := WebhookDelivery(uuid.New(), uuid.New(), "core.event.tracked", at.Add(999*time.Microsecond))
		require.Equal(t, at, Time(delivery))
		require.EqualValues(t, 8, delivery.Version())
	})
}
