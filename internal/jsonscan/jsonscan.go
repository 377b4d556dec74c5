// Package jsonscan owns what JSON may stand in the database: it walks a text
// once, by the grammar of RFC 8259, and says where it breaks and what in it is
// well formed and could still not be kept. The intake of events and messages
// builds its parser on the Scanner; files of recipients and drafts of blasts ask
// Storable. What a fault means to whoever sent the text, its code in an answer,
// its words and its status, is the caller's. The package is pure.
//
// # Which numbers
//
// jsonb stores a number as a decimal and writes it back without an exponent, so
// that 1e131071 is seven bytes in and 131,072 out. A number is taken when it
// has at most 64 significant digits, is finite as a float64, has no digit
// beyond the 400th decimal place and an exponent within ±400; and when all
// numbers of a text, or of one event of a batch, written without exponents, stay
// within 32 KiB.
package jsonscan

// Limits of one text, or of one event of a batch. Sizes are bytes, not
// characters (field report 12).
const (
	MaxDepth    = 32     // levels of objects and arrays
	MaxMembers  = 10_000 // object members and array elements
	MaxKeyBytes = 512    // of one key, decoded
)

// Code says what is wrong with a value.
type Code string

// The codes of soft faults.
const (
	DuplicateKey     Code = "duplicate_key"
	InvalidUTF8      Code = "invalid_utf8"
	NulCharacter     Code = "nul_character"
	LoneSurrogate    Code = "lone_surrogate"
	TooDeep          Code = "too_deep"
	NumberOutOfRange Code = "number_out_of_range"
	TooManyKeys      Code = "too_many_keys"
	KeyTooLong       Code = "key_too_long"
)

// Broken is the code of a text that is no JSON, which Storable gives; a Scanner
// says it with -1.
const Broken Code = "broken"

// ofKeys says that the fault is one of keys or of their number, which jsonb
// would keep, or settle by taking the last.
func (c Code) ofKeys() bool {
	return c == DuplicateKey || c == TooManyKeys || c == KeyTooLong
}

// Fault is a code and where in the text it was met.
type Fault struct {
	Code Code
	At   int // offset in the text
}

// Storable gives the first reason why the database could not keep a text, Code
// being empty where it can: the text is no JSON value, or in it are NUL, half of
// a surrogate pair, broken UTF-8, too many levels, or numbers out of range. Keys
// that stand twice, are long or many are no reason.
func (s *Scanner) Storable(text []byte) Fault {
	s.Reset(text)
	s.loose = true
	defer func() { s.loose = false }()
	end := s.Value(s.Space(0), 1)
	if end < 0 {
		return Fault{Broken, s.Hard}
	}
	if end = s.Space(end); end != len(text) {
		return Fault{Broken, end}
	}
	return s.Soft
}
