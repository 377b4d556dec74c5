package message

import (
	"encoding/json"
	"fmt"
	"strings"

	"github.com/google/uuid"

	"github.com/softcrum/carril/ingestor/intake"
	"github.com/softcrum/carril/internal/httpserver"
	"github.com/softcrum/carril/internal/oneline"
)

// recipients takes 1 to MaxRecipients of them, each named in one way.
func recipients(e envelope, _ *Caller, r *Request) *httpserver.Problem {
	if !e.has("recipients") {
		return refuseAs(intake.MissingField, "/recipients", "recipients is required.")
	}
	var list []json.RawMessage
	if e["recipients"][0] != '[' || json.Unmarshal(e["recipients"], &list) != nil {
		return wrongType("/recipients", "an array")
	}
	switch {
	case len(list) == 0:
		return refuse(NoRecipient, "/recipients", "")
	case len(list) > MaxRecipients:
		return refuse(TooManyRecipients, "/recipients", fmt.Sprintf("At most %d; nothing of this request was taken.", MaxRecipients))
	}
	content := 0
	if r.Content != nil {
		content = len(*r.Content)
	}
	asked, spread := make([]string, len(list)), 0
	for i, raw := range list {
		text, own, problem := recipient(raw, fmt.Sprintf("/recipients/%d", i))
		if problem != nil {
			return problem
		}
		if own == 0 {
			own = len(r.Variables)
		}
		asked[i], spread = text, spread+content+own
	}
	if spread > MaxSpread {
		return refuse(TooLarge, "", fmt.Sprintf("Content and variables, once for each recipient, are at most %d bytes; send it in parts, or use a template.", MaxSpread))
	}
	r.Recipients, r.Count = "["+strings.Join(asked, ",")+"]", len(list)
	return nil
}

// recipient renders one as the stage behind the topic reads it, and says how
// many bytes of variables are its own.
func recipient(raw json.RawMessage, at string) (text string, own int, problem *httpserver.Problem) {
	if raw[0] != '{' {
		return "", 0, refuse(InvalidRecipient, at, "A recipient is an object.")
	}
	e, problem := object(raw, at, "external_id", "address", "contact_id", "variables")
	if problem != nil {
		return "", 0, problem
	}
	name := ""
	for _, n := range []string{"external_id", "address", "contact_id"} {
		if !e.has(n) {
			continue
		}
		if name != "" {
			return "", 0, refuse(InvalidRecipient, at, "A recipient has one of external_id, address and contact_id.")
		}
		name = n
	}
	if name == "" {
		return "", 0, refuse(InvalidRecipient, at, "A recipient has one of external_id, address and contact_id.")
	}
	if why := wrongName(e, name); why != "" {
		return "", 0, refuse(InvalidRecipient, at+"/"+name, why)
	}
	v, problem := variablesOf(e, at+"/variables")
	if problem != nil {
		return "", 0, problem
	}
	return e.compact(name, "variables"), len(v), nil
}

// wrongName says what is wrong with how a recipient is named; "" for nothing.
// Control characters would let an address break out of its header (bad inputs
// 48); what else is no address is the gate's to say.
func wrongName(e envelope, name string) string {
	s, ok := e.text(name)
	switch {
	case !ok:
		return name + " is a string."
	case name == "contact_id":
		if _, err := uuid.Parse(s); err != nil || len(s) != 36 {
			return "contact_id is a UUID."
		}
	case s == "" || len(s) > MaxRecipient:
		return fmt.Sprintf("%s has 1 to %d bytes.", name, MaxRecipient)
	case strings.ContainsFunc(s, oneline.Breaks):
		return name + " has a control character."
	}
	return ""
}
