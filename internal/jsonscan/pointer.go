package jsonscan

import "strconv"

// maxPointer bounds a pointer in bytes; one that would be longer stops at the
// last parent that fits.
const maxPointer = 512

// step is one level of a path: a key's string in the body, or an index.
type step struct {
	array      bool
	index      int
	start, end int // content of the key's string; end 0: no key yet
}

// Pointer finds the JSON pointer of what stands at offset at of b. What is before
// it has been scanned; only refusals pay for this walk.
func Pointer(b []byte, at int) string {
	var path []step
	wantKey := false
	for i := 0; i < at || i == at && at < len(b) && b[i] == '"' && wantKey; i++ {
		switch b[i] {
		case '{':
			path, wantKey = append(path, step{}), true
		case '[':
			path, wantKey = append(path, step{array: true}), false
		case '}', ']':
			path, wantKey = path[:max(len(path)-1, 0)], false
		case ',':
			if n := len(path) - 1; n >= 0 && path[n].array {
				path[n].index++
			} else {
				wantKey = true
			}
		case '"':
			end := ClosingQuote(b, i)
			if end < 0 {
				return render(b, path)
			}
			if n := len(path) - 1; wantKey && n >= 0 {
				path[n].start, path[n].end = i+1, end
				wantKey = false
			}
			i = end
		}
	}
	return render(b, path)
}

func render(b []byte, path []step) string {
	var out []byte
	for _, s := range path {
		if !s.array && s.end == 0 {
			break // the object as such
		}
		part := append([]byte(nil), '/')
		if s.array {
			part = strconv.AppendInt(part, int64(s.index), 10)
		} else {
			part = appendEscaped(part, unescape(nil, b[s.start:s.end]))
		}
		if len(out)+len(part) > maxPointer {
			break
		}
		out = append(out, part...)
	}
	return string(out)
}

// appendEscaped writes a key as RFC 6901 does.
func appendEscaped(dst, key []byte) []byte {
	for _, c := range key {
		switch c {
		case '~':
			dst = append(dst, "~0"...)
		case '/':
			dst = append(dst, "~1"...)
		default:
			dst = append(dst, c)
		}
	}
	return dst
}
