package jsonscan

// levels is a stack of open brackets, a bit each: set for an object.
type levels struct {
	bits []uint64
	n    int
}

func (l *levels) push(object bool) {
	if l.n>>6 == len(l.bits) {
		l.bits = append(l.bits, 0)
	}
	bit := uint64(1) << (l.n & 63)
	l.bits[l.n>>6] &^= bit
	if object {
		l.bits[l.n>>6] |= bit
	}
	l.n++
}

// object says whether the innermost open bracket is an object's.
func (l *levels) object() bool { return l.bits[(l.n-1)>>6]>>((l.n-1)&63)&1 == 1 }

// deep walks a value that is refused for its depth, by the same grammar but
// without recursion and without looking at keys: a million brackets cost no
// stack, and a batch goes on behind them (bad inputs row 13).
func (s *Scanner) deep(i int) int {
	s.levels.n = 0
	for {
		if i = s.descend(i); i < 0 {
			return -1
		}
		if i = s.ascend(i); i < 0 || s.levels.n == 0 {
			return i
		}
	}
}

// descend opens brackets up to the next scalar or empty bracket and walks that.
func (s *Scanner) descend(i int) int {
	for i >= 0 {
		switch s.At(i) {
		case '{':
			s.levels.push(true)
			if i = s.Space(i + 1); s.At(i) == '}' {
				return i
			}
			i = s.deepKey(i)
		case '[':
			s.levels.push(false)
			if i = s.Space(i + 1); s.At(i) == ']' {
				return i
			}
		default:
			return s.Value(i, 0)
		}
	}
	return -1
}

// ascend closes brackets behind a value up to the next member or element, or
// the last bracket.
func (s *Scanner) ascend(i int) int {
	for s.levels.n > 0 {
		i = s.Space(i)
		switch c, object := s.At(i), s.levels.object(); {
		case c == ',' && object:
			return s.deepKey(s.Space(i + 1))
		case c == ',':
			return s.Space(i + 1)
		case c == '}' && object, c == ']' && !object:
			s.levels.n--
			i++
		default:
			return s.Broken(i)
		}
	}
	return i
}

// deepKey walks a key and its colon.
func (s *Scanner) deepKey(i int) int {
	if s.At(i) != '"' {
		return s.Broken(i)
	}
	if i, _ = s.str(i); i < 0 {
		return -1
	}
	if i = s.Space(i); s.At(i) != ':' {
		return s.Broken(i)
	}
	return s.Space(i + 1)
}
