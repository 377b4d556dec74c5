package message

import (
	"net/http"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
)

// The refusals that only messages have; the others are intake's.
const (
	InvalidRecipient   = "invalid_recipient"   // 400
	TooManyRecipients  = "too_many_recipients" // 413
	TooLarge           = "message_too_large"   // 413
	NoRecipient        = "no_recipient"        // 422
	UnknownChannel     = "unknown_channel"     // 422
	InvalidCategory    = "invalid_category"    // 422
	ContentOrTemplate  = "content_or_template" // 422
	InvalidTemplate    = "invalid_template"    // 422
	InvalidContent     = "invalid_content"     // 422
	titleOfNotAnObject = "A message is a JSON object"
)

var own = map[string]struct {
	status int
	title  string
}{
	InvalidRecipient:  {http.StatusBadRequest, "A recipient has a form that is not taken"},
	TooManyRecipients: {http.StatusRequestEntityTooLarge, "The request has too many recipients"},
	TooLarge:          {http.StatusRequestEntityTooLarge, "The message is too large"},
	NoRecipient:       {http.StatusUnprocessableEntity, "The request has no recipient"},
	UnknownChannel:    {http.StatusUnprocessableEntity, "This channel does not exist here"},
	InvalidCategory:   {http.StatusUnprocessableEntity, "category is neither transactional, product nor marketing"},
	ContentOrTemplate: {http.StatusUnprocessableEntity, "A message has a template or content, one of them"},
	InvalidTemplate:   {http.StatusUnprocessableEntity, "The template has a name or version of a form that is not taken"},
	InvalidContent:    {http.StatusUnprocessableEntity, "The content lacks a part or has one of another form"},
}

// Codes lists every code of a refusal, for metrics and the contract's tests.
func Codes() []string {
	var codes []string
	for _, c := range []intake.Code{intake.EmptyBody, intake.NotAnObject, intake.TrailingData, intake.InvalidJSON, intake.DuplicateKey,
		intake.UnknownField, intake.InvalidUTF8, intake.NulCharacter, intake.LoneSurrogate, intake.TooDeep, intake.NumberOutOfRange,
		intake.TooManyKeys, intake.KeyTooLong, intake.InvalidTime, intake.MissingField, intake.InvalidField, intake.InvalidIdempotencyKey,
		intake.IdempotencyKeyMismatch, intake.InvalidCorrelationID} {
		codes = append(codes, string(c))
	}
	for c := range own {
		codes = append(codes, c)
	}
	return codes
}

func refuse(code, pointer, detail string) *httpserver.Problem {
	c := own[code]
	return &httpserver.Problem{Status: c.status, Code: code, Title: c.title, Pointer: pointer, Detail: detail}
}

// refuseAs refuses with a code that events have too.
func refuseAs(code intake.Code, pointer, detail string) *httpserver.Problem {
	p := &httpserver.Problem{Status: code.Status(), Code: string(code), Title: code.Title(), Pointer: pointer, Detail: detail}
	if code == intake.NotAnObject {
		p.Title = titleOfNotAnObject
	}
	return p
}

func wrongType(pointer, want string) *httpserver.Problem {
	return refuseAs(intake.InvalidField, pointer, pointer[1:]+" is "+want+".")
}
