package jsonscan

// Plain cuts a string off the beginning of s whose content is printable ASCII
// without escapes, as nearly all ids, keys and times are. ok is false for any other
// string and for what is none.
func Plain(s string) (content, rest string, ok bool) {
	if s == "" || s[0] != '"' {
		return "", s, false
	}
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return s[1:i], s[i+1:], true
		case !PlainByte(c):
			return "", s, false
		}
	}
	return "", s, false
}

// PlainByte says that a byte stands in a string as it is.
func PlainByte(c byte) bool { return c >= ' ' && c <= '~' && c != '"' && c != '\\' }
