package sandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/softcrum/carril/internal/signature"
)

// The text message API's errors that the sandbox gives by itself, by their
// numbers.
const (
	textUnauthorized = 20003
	textMethod       = 20004
	textTooMany      = 20429
	textServerError  = 20500
	textInvalidTo    = 21211
	textMissingBody  = 21602
	textMissingFrom  = 21603
	textNotOwned     = 21606
	textOptedOut     = 21610
	textTooLong      = 21617
	textQuota        = 63038
)

const maxText = 1600 // characters

// textError is the text message API's error envelope.
type textError struct {
	Code     int    `json:"code"`
	Message  string `json:"message"`
	MoreInfo string `json:"more_info"`
	Status   int    `json:"status"`
}

func refuseText(status, code int, message string) *apiError {
	return &apiError{Status: status, Name: strconv.Itoa(code), Message: message, text: code}
}

var e164 = regexp.MustCompile(`^\+[1-9][0-9]{6,14}$`)

// text is one text message as it is asked for.
type text struct {
	to, from, body, callback string
}

// sendText takes one message. Unlike the email API it knows no idempotency keys:
// the same request twice is two messages.
func (s *Server) sendText(w http.ResponseWriter, r *http.Request) {
	x := s.newExchange(w, r, endpointTexts)
	x.render = x.renderText
	if err := x.runText(); err != nil {
		x.refuse(err)
	}
}

func (x *exchange) runText() *apiError {
	if err := x.admitText(); err != nil {
		return err
	}
	body, err := io.ReadAll(http.MaxBytesReader(x.w, x.r.Body, 1<<20))
	if err != nil {
		return refuseText(http.StatusBadRequest, textMissingBody, "The body cannot be read.")
	}
	x.body = body
	if x.meetFault(); x.fault.Kind.takesNothing() {
		return x.refuseByFault()
	}
	m, refusal := readText(body)
	if refusal != nil {
		return refusal
	}
	x.wait(x.cfg.Latency)
	if x.quota.take(x.record.At, 1, http.Header{}) != nil {
		return refuseText(http.StatusTooManyRequests, textQuota, "The account's daily limit is reached.")
	}
	t := &taken{single: true, first: x.messages.Add(1), count: 1}
	x.ledger.accepted.Add(1)
	x.keepText(m, t)
	x.answer(t)
	return nil
}

func (x *exchange) admitText() *apiError {
	account, token, ok := x.r.BasicAuth()
	switch {
	case !ok || account == "" || len(token) < 16, len(x.cfg.SMSTokens) > 0 && !slices.Contains(x.cfg.SMSTokens, token):
		return refuseText(http.StatusUnauthorized, textUnauthorized, "Authenticate")
	case x.r.Method != http.MethodPost:
		return refuseText(http.StatusMethodNotAllowed, textMethod, "Method not allowed")
	case x.texts.take(x.record.At, http.Header{}) != nil: // this API says nothing of its limits
		x.ledger.limited.Add(1)
		return refuseText(http.StatusTooManyRequests, textTooMany, "Too Many Requests")
	}
	return nil
}

func readText(body []byte) (text, *apiError) {
	form, err := url.ParseQuery(string(body))
	if err != nil {
		return text{}, refuseText(http.StatusBadRequest, textMissingBody, "The body is no form.")
	}
	m := text{to: form.Get("To"), from: form.Get("From") + form.Get("MessagingServiceSid"), body: form.Get("Body"), callback: form.Get("StatusCallback")}
	switch {
	case m.from == "":
		return m, refuseText(http.StatusBadRequest, textMissingFrom, "A 'From' or a 'MessagingServiceSid' is required.")
	case m.body == "":
		return m, refuseText(http.StatusBadRequest, textMissingBody, "A message body is required.")
	case len([]rune(m.body)) > maxText:
		return m, refuseText(http.StatusBadRequest, textTooLong, "The message body exceeds 1600 characters.")
	case !e164.MatchString(m.to):
		return m, refuseText(http.StatusBadRequest, textInvalidTo, "The 'To' number is not a valid phone number.")
	case strings.HasSuffix(m.to, "0004"):
		return m, refuseText(http.StatusBadRequest, textOptedOut, "The recipient has unsubscribed.")
	case strings.HasSuffix(m.from, "0007"):
		return m, refuseText(http.StatusBadRequest, textNotOwned, "The 'From' number is not one of the account's.")
	}
	return m, nil
}

// keepText puts the message into the ledger and sets its callbacks going.
func (x *exchange) keepText(m text, t *taken) {
	seq := x.noteTaken(t)
	id := x.textID(t.first)
	tags := map[string]string{}
	if u, err := url.Parse(m.callback); err == nil {
		for _, name := range []string{"send_id", "tenant_id"} {
			if v := u.Query().Get(name); v != "" {
				tags[name] = v
			}
		}
	}
	x.ledger.receipts.add(func(n uint64) Receipt {
		return Receipt{Seq: n, Request: seq, At: x.record.At, TenantID: tags["tenant_id"], SendID: tags["send_id"], To: m.to, MessageID: id, Answer: x.record.Answer}
	})
	x.ledger.contents.add(func(uint64) Content {
		return Content{MessageID: id, At: x.record.At, From: m.from, To: []string{m.to}, Subject: "(text message)", Text: clip(m.body, maxContent), Tags: tags}
	})
	if m.callback != "" {
		x.followText(id, m)
	}
}

func (s *Server) textID(number uint64) string {
	return "SM" + strings.ReplaceAll(s.messageID(number), "-", "")
}

func (x *exchange) renderText(t *taken) []byte {
	answer := map[string]any{"error_code": nil, "error_message": nil, "num_segments": "1", "status": "queued"}
	if t.count > 0 { // of one message less, none is left
		answer["sid"] = x.textID(t.first)
	}
	body, err := json.Marshal(answer)
	if err != nil {
		x.log.Error("sandbox could not encode an answer", "error", err)
	}
	return body
}

// callback is one report of a text message's status.
type callback struct {
	target string
	token  string
	form   url.Values
}

// textStory is what becomes of a text message: it stands in the end of its
// number.
func textStory(to string) (statuses []string, code string) {
	switch {
	case strings.HasSuffix(to, "0001"):
		return []string{"queued", "sent", "undelivered"}, "30003" // out of reach
	case strings.HasSuffix(to, "0002"):
		return []string{"queued", "sent", "undelivered"}, "30005" // there is no such handset
	case strings.HasSuffix(to, "0003"):
		return []string{"queued", "failed"}, "30007" // filtered
	default:
		return []string{"queued", "sent", "delivered"}, ""
	}
}

func (x *exchange) followText(id string, m text) {
	account, token, _ := x.r.BasicAuth()
	if len(x.cfg.SMSTokens) > 0 {
		token = x.cfg.SMSTokens[0]
	}
	h := x.hooks
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.front == "" && !x.cfg.AllowRemote && !onThisMachine(m.callback) {
		h.dropped.Add(1)
		return
	}
	statuses, code := textStory(m.to)
	for i, status := range statuses {
		form := url.Values{
			"MessageSid": {id}, "SmsSid": {id}, "AccountSid": {account}, "To": {m.to}, "From": {m.from},
			"MessageStatus": {status}, "SmsStatus": {status}, "ApiVersion": {"2010-04-01"},
		}
		if i == len(statuses)-1 && code != "" {
			form.Set("ErrorCode", code)
		}
		h.push(event{
			id: id + ":" + status, kind: "message." + status, due: time.Now().Add(time.Duration(i) * h.cfg.DeliveryDelay),
			callback: &callback{target: m.callback, token: token, form: form},
		})
	}
}

// onThisMachine keeps whoever may send from having the sandbox post elsewhere.
func onThisMachine(target string) bool {
	u, err := url.Parse(target)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}

func (h *hooks) carry(front string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.front = strings.TrimRight(front, "/")
}

// call posts a callback, signed with the URL that it names.
func (h *hooks) call(ctx context.Context, c callback) error {
	token, err := signature.ParseToken(c.token)
	if err != nil {
		return fmt.Errorf("sign a callback: %w", err)
	}
	u, err := url.Parse(c.target)
	if err != nil {
		return fmt.Errorf("read a callback's URL: %w", err)
	}
	h.mu.Lock()
	if front, err := url.Parse(h.front); err == nil && h.front != "" {
		u.Scheme, u.Host = front.Scheme, front.Host
	}
	h.mu.Unlock()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, u.String(), strings.NewReader(c.form.Encode()))
	if err != nil {
		return fmt.Errorf("make a callback: %w", err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("User-Agent", "carril-sandbox")
	req.Header.Set(signature.HeaderURL, signature.SignURL(token, c.target, c.form))
	return h.deliver(req)
}
