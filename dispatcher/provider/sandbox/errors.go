package sandbox

import (
	"encoding/json"
	"net/http"
	"strconv"
)

// apiError is Resend's error envelope.
type apiError struct {
	Status     int    `json:"statusCode"`
	Name       string `json:"name"`
	Message    string `json:"message"`
	retryAfter string // the header, where it has one
	plain      bool   // answered by what stands before the API, as text
	text       int    // of the text message API: its code, instead of the name
}

// The names of Resend's errors that the sandbox gives by itself.
const (
	nameMissingKey    = "missing_api_key"
	nameInvalidKey    = "invalid_api_key"
	nameRestrictedKey = "restricted_api_key"
	nameSuspendedKey  = "suspended_api_key"
	nameValidation    = "validation_error"
	nameNotFound      = "not_found"
	nameMethod        = "method_not_allowed"
	nameBadIdemKey    = "invalid_idempotency_key"
	nameOtherPayload  = "invalid_idempotent_request"
	nameInFlight      = "concurrent_idempotent_requests"
	nameMissingField  = "missing_required_field"
	nameParameter     = "invalid_parameter"
	nameFrom          = "invalid_from_address"
	nameRate          = "rate_limit_exceeded"
	nameDaily         = "daily_quota_exceeded"
	nameMonthly       = "monthly_quota_exceeded"
	nameApplication   = "application_error"
)

func refuse(status int, name, message string) *apiError {
	return &apiError{Status: status, Name: name, Message: message}
}

func missing(field string) *apiError {
	return refuse(http.StatusUnprocessableEntity, nameMissingField, "Missing `"+field+"` field.")
}

func invalid(message string) *apiError {
	return refuse(http.StatusUnprocessableEntity, nameParameter, message)
}

func (e *apiError) write(w http.ResponseWriter) {
	if e.retryAfter != "" {
		w.Header().Set("Retry-After", e.retryAfter)
	}
	if !e.plain {
		writeJSON(w, e.Status, e.body())
		return
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(e.Status)
	_, _ = w.Write([]byte(e.Message))
}

func (e *apiError) body() []byte {
	var v any = e
	if e.text != 0 {
		v = textError{Code: e.text, Message: e.Message, MoreInfo: "https://example.com/errors/" + strconv.Itoa(e.text), Status: e.Status}
	}
	body, err := json.Marshal(v)
	if err != nil {
		return nil // three plain fields always encode
	}
	return body
}

func writeJSON(w http.ResponseWriter, status int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body)
}
