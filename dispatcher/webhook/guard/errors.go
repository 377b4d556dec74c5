package guard

// Code is the stable name of a refusal, as the API gives it.
type Code string

// The refusals.
const (
	CodeInvalidURL     Code = "invalid_url"
	CodeUserinfo       Code = "userinfo_not_allowed"
	CodePort           Code = "port_not_allowed"
	CodeAddress        Code = "address_not_allowed"
	CodeHeader         Code = "header_not_allowed"
	CodeTooManyHeaders Code = "too_many_headers"
)

// Error refuses a URL, a header or an address. Pointer is the JSON pointer of
// the field at fault in the body of a request that creates an endpoint. Detail
// is for people and quotes nothing secret.
type Error struct {
	Code    Code
	Pointer string
	Detail  string
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Detail }

func refuseURL(code Code, detail string) error {
	return &Error{Code: code, Pointer: "/url", Detail: detail}
}

// Problem gives the parts of a typed refusal, for an API's answer.
func (e *Error) Problem() (code, pointer, detail string) {
	return string(e.Code), e.Pointer, e.Detail
}
