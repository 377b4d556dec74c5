package intake

import (
	"net/http"
	"time"

	"github.com/softcrum/carril/internal/jsonscan"
)

// Code is the stable name of a refusal.
type Code string

// The codes. 400: this is not JSON of our kind. 413: too large. 422: well
// formed, and still not acceptable.
const (
	EmptyBody        Code = "empty_body"
	NotAnObject      Code = "not_an_object"
	TrailingData     Code = "trailing_data"
	InvalidJSON      Code = "invalid_json"
	DuplicateKey          = Code(jsonscan.DuplicateKey)
	UnknownField     Code = "unknown_field"
	InvalidUTF8           = Code(jsonscan.InvalidUTF8)
	NulCharacter          = Code(jsonscan.NulCharacter)
	LoneSurrogate         = Code(jsonscan.LoneSurrogate)
	TooDeep               = Code(jsonscan.TooDeep)
	NumberOutOfRange      = Code(jsonscan.NumberOutOfRange)
	TooManyKeys           = Code(jsonscan.TooManyKeys)
	KeyTooLong            = Code(jsonscan.KeyTooLong)
	InvalidTime      Code = "invalid_time"
	InvalidEventName Code = "invalid_event_name"

	EventTooLarge Code = "event_too_large"
	BatchTooLarge Code = "batch_too_large"

	MissingField           Code = "missing_field"
	InvalidType            Code = "invalid_type"
	InvalidField           Code = "invalid_field"
	ReservedEventName      Code = "reserved_event_name"
	MissingIdentifier      Code = "missing_identifier"
	InvalidIdentifier      Code = "invalid_identifier"
	InvalidIdempotencyKey  Code = "invalid_idempotency_key"
	IdempotencyKeyMismatch Code = "idempotency_key_mismatch"
	InvalidCorrelationID   Code = "invalid_correlation_id"
	OccurredAtOutOfRange   Code = "occurred_at_out_of_range"
	TaxonomyViolation      Code = "taxonomy_violation" // given by the ingestor, which knows the tenant's schemas
	EmptyBatch             Code = "empty_batch"
	MixedHistorical        Code = "mixed_historical"
)

// Codes lists every code, for metrics and for the contract's tests.
func Codes() []Code {
	return []Code{
		EmptyBody, NotAnObject, TrailingData, InvalidJSON, DuplicateKey, UnknownField, InvalidUTF8, NulCharacter,
		LoneSurrogate, TooDeep, NumberOutOfRange, TooManyKeys, KeyTooLong, InvalidTime, InvalidEventName,
		EventTooLarge, BatchTooLarge,
		MissingField, InvalidType, InvalidField, ReservedEventName, MissingIdentifier, InvalidIdentifier,
		InvalidIdempotencyKey, IdempotencyKeyMismatch, InvalidCorrelationID, OccurredAtOutOfRange, TaxonomyViolation, EmptyBatch, MixedHistorical,
	}
}

// Status is the HTTP status of a refusal.
func (c Code) Status() int {
	switch c {
	case EmptyBody, NotAnObject, TrailingData, InvalidJSON, DuplicateKey, UnknownField, InvalidUTF8, NulCharacter,
		LoneSurrogate, TooDeep, NumberOutOfRange, TooManyKeys, KeyTooLong, InvalidTime, InvalidEventName:
		return http.StatusBadRequest
	case EventTooLarge, BatchTooLarge:
		return http.StatusRequestEntityTooLarge
	}
	return http.StatusUnprocessableEntity
}

// Title is the refusal in one sentence, the same for every occurrence.
func (c Code) Title() string {
	switch c {
	case EmptyBody:
		return "The body is empty"
	case NotAnObject:
		return "An event is a JSON object"
	case TrailingData:
		return "Something follows the JSON object"
	case InvalidJSON:
		return "The body is not valid JSON"
	case DuplicateKey:
		return "A key stands twice in one object"
	case UnknownField:
		return "A field is not part of this request"
	case InvalidUTF8:
		return "A string is not valid UTF-8"
	case NulCharacter:
		return "A string contains the NUL character"
	case LoneSurrogate:
		return "A string contains half of a surrogate pair"
	case TooDeep:
		return "Values are nested too deeply"
	case NumberOutOfRange:
		return "A number is beyond what is stored exactly"
	case TooManyKeys:
		return "Too many keys and array elements"
	case KeyTooLong:
		return "A key is too long"
	case InvalidTime:
		return "A time is not a strict RFC 3339 date-time"
	case InvalidEventName:
		return "event_name has a form that is not taken"
	case EventTooLarge:
		return "The event is too large"
	case BatchTooLarge:
		return "The batch has too many events"
	}
	return c.titleOfUnacceptable()
}

func (c Code) titleOfUnacceptable() string {
	switch c {
	case MissingField:
		return "A required field is missing"
	case InvalidType:
		return "type is neither track nor identify"
	case InvalidField:
		return "A field has the wrong JSON type"
	case ReservedEventName:
		return "Event names of the platform are reserved"
	case MissingIdentifier:
		return "An event needs at least one identifier"
	case InvalidIdentifier:
		return "An identifier has a form that is not taken"
	case InvalidIdempotencyKey:
		return "idempotency_key has a form that is not taken"
	case IdempotencyKeyMismatch:
		return "The header and the body name different idempotency keys"
	case InvalidCorrelationID:
		return "correlation_id has a form that is not taken"
	case OccurredAtOutOfRange:
		return "occurred_at is outside the accepted window"
	case TaxonomyViolation:
		return "The event does not match the schema that is installed for its name"
	case EmptyBatch:
		return "The batch has no events"
	case MixedHistorical:
		return "A batch is historical as a whole or not at all"
	}
	return ""
}

// Error is a typed refusal of an event or of a whole batch. Its texts name
// fields and limits, never values.
type Error struct {
	Code       Code
	Detail     string
	Pointer    string    // JSON pointer into the request body; empty: the body as a whole, or a header
	ServerTime time.Time // set where the caller's clock may be at fault
	Extra      map[string]any
}

func (e *Error) Error() string {
	s := "intake: " + string(e.Code)
	if e.Pointer != "" {
		s += " at " + e.Pointer
	}
	return s
}
