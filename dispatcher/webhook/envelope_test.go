package webhook

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/softcrum/carril/schemas"
)

func TestEnvelope(t *testing.T) {
	t.Parallel()
	id := uuid.MustParse("0190aaaa-0000-8000-8000-000000000001")
	contact := uuid.MustParse("0190aaaa-0000-7000-8000-00000000000c")
	at := time.Date(2026, 11, 1, 6, 30, 0, 123456000, time.UTC)

	t.Run("ATrackedEventKeepsDigitsAndTheCallersOffset", func(t *testing.T) {
		e := schemas.EventTracked{EventID: id, ContactID: contact, TenantID: uuid.New(), EventName: "invoice.paid", OccurredAt: at, OccurredOffset: -4 * 3600,
			ReceivedAt: at.Add(time.Second), CorrelationID: "c-1", IdempotencyKey: "secret-key", Historical: true,
			Payload: `{"total": 1.10, "big": 12345678901234567890123, "e": 1E+2, "html": "<b>&", "esc": "\u0041"}`}
		got, err := trackedEvent(&e)
		require.NoError(t, err)
		require.Equal(t, `{"type":"core.event.tracked","timestamp":"2026-11-01T06:30:00.123456Z","data":{"event_id":"0190aaaa-0000-8000-8000-000000000001",`+
			`"event_name":"invoice.paid","contact_id":"0190aaaa-0000-7000-8000-00000000000c","occurred_at":"2026-11-01T02:30:00.123456-04:00",`+
			`"received_at":"2026-11-01T06:30:01.123456Z","properties":{"total":1.10,"big":12345678901234567890123,"e":1E+2,"html":"<b>&","esc":"\u0041"},`+
			`"correlation_id":"c-1","historical":true}}`, string(got.body))
		require.Equal(t, contact, got.about)
		require.NotContains(t, string(got.body), "secret-key")
	})

	t.Run("AMessageCarriesItsIdsAndNoContent", func(t *testing.T) { // FS-MSG-0003, "Eventos"
		m := schemas.MessageStatusChanged{Type: "messaging.message.bounced", ChangeID: id, SendID: uuid.MustParse("0190aaaa-0000-8000-8000-0000000000f1"), ContactID: contact,
			Channel: "email", Category: "transactional", Status: "bounced", OccurredAt: at, RecordedAt: at, CorrelationID: "c-1", OriginEventID: id, Reason: new("hard")}
		got, err := messageEvent(&m)
		require.NoError(t, err)
		require.Equal(t, `{"type":"messaging.message.bounced","timestamp":"2026-11-01T06:30:00.123456Z","data":{"send_id":"0190aaaa-0000-8000-8000-0000000000f1",`+
			`"contact_id":"0190aaaa-0000-7000-8000-00000000000c","channel":"email","category":"transactional","status":"bounced",`+
			`"occurred_at":"2026-11-01T06:30:00.123456Z","reason":"hard","correlation_id":"c-1","origin_event_id":"0190aaaa-0000-8000-8000-000000000001"}}`, string(got.body))
		require.Equal(t, m.SendID, got.about)
	})

	t.Run("WhatIsNoJSONIsTheRecordsFault", func(t *testing.T) {
		for _, payload := range []string{`{"a":`, `{} {}`, "{\"a\":\"\x01\"}"} {
			_, err := trackedEvent(&schemas.EventTracked{OccurredAt: at, ReceivedAt: at, Payload: payload})
			require.Error(t, err, payload)
		}
	})

	t.Run("AnOffsetOfSecondsNeverMovesTheInstant", func(t *testing.T) {
		got, err := trackedEvent(&schemas.EventTracked{OccurredAt: at, OccurredOffset: 3600 + 30, ReceivedAt: at})
		require.NoError(t, err)
		var read struct {
			Data struct {
				OccurredAt time.Time `json:"occurred_at"`
			} `json:"data"`
		}
		require.NoError(t, json.Unmarshal(got.body, &read))
		require.True(t, at.Equal(read.Data.OccurredAt))
	})
}

func TestMatches(t *testing.T) {
	t.Parallel()
	for pattern, want := range map[string][]string{
		"*":                      EventTypes(),
		"core.event.tracked":     {TypeTracked},
		"messaging.message.*":    EventTypes()[1:],
		"messaging.*":            EventTypes()[1:],
		"messaging.message.sent": {"messaging.message.sent"},
		"messaging.message.s*":   nil,
		"core.event":             nil,
		".*":                     nil,
		"":                       nil,
	} {
		var got []string
		for _, eventType := range EventTypes() {
			if matches([]string{"never.this", pattern}, eventType) {
				got = append(got, eventType)
			}
		}
		require.Equal(t, want, got, pattern)
	}
}
