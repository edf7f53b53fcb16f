package gql

import (
	"strings"
	"unicode/utf8"
)

// A lexer splits a query into tokens, from left to right. The query must be valid UTF-8.
type lexer struct {
	text string
	at   int // the byte offset of the next token
}

// next returns the next token of the query. At the end of the query, it returns a token of the kind
// end, at each call. If the text is no token, it returns the same invalid token at each call.
func (l *lexer) next() token {
	for l.at < len(l.text) && strings.IndexByte(" \t\r\n", l.text[l.at]) >= 0 {
		l.at++
	}
	if l.at == len(l.text) {
		return token{kind: end, at: l.at}
	}
	rest := l.text[l.at:]
	switch c := rest[0]; {
	case c == '\'' || c == '"':
		return l.quoted(str, "string")
	case c == '`':
		return l.quoted(quoted, "name")
	case c == '@':
		return l.binding(rest)
	case numberStart(rest):
		return l.number(rest)
	case nameLength(rest) > 0:
		t := l.take(word, nameLength(rest))
		if upper := strings.ToUpper(t.text); keywords[upper] {
			t.kind, t.value = keyword, upper
		}
		return t
	case strings.HasPrefix(rest, "!="), strings.HasPrefix(rest, "<="), strings.HasPrefix(rest, ">="):
		return l.take(sign, 2)
	case strings.IndexByte("(),.*+=<>", c) >= 0:
		return l.take(sign, 1)
	case c == '-':
		return l.invalid(l.at, "a minus sign is only part of a number; a name that holds one needs backquotes")
	default:
		_, size := utf8.DecodeRuneInString(rest)
		return l.invalid(l.at, "the character %q has no meaning here", rest[:size])
	}
}

// take returns the next n bytes as a token of this kind, and moves past them.
func (l *lexer) take(kind tokenKind, n int) token {
	text := l.text[l.at : l.at+n]
	t := token{kind: kind, at: l.at, text: text, value: text}
	l.at += n
	return t
}

func (l *lexer) invalid(at int, format string, args ...any) token {
	return token{kind: invalid, at: l.at, err: positioned(l.text, at, format, args...)}
}

// nameLength returns the length of the unquoted name at the start of s. A name may have the letters
// A to Z and a to z, digits except at its start, _, $, and all characters outside ASCII.
func nameLength(s string) int {
	i := 0
	for i < len(s) {
		c := s[i]
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c == '_' || c == '$' || c >= utf8.RuneSelf
		if !letter && (i == 0 || !digit(c)) {
			break
		}
		i++
	}
	return i
}

func digit(c byte) bool { return c >= '0' && c <= '9' }

// digits returns the number of digits at the start of s.
func digits(s string) int {
	i := 0
	for i < len(s) && digit(s[i]) {
		i++
	}
	return i
}

// numberStart reports whether s starts with a number. A sign directly before digits belongs to the
// number, even after another number: "1+2" is two numbers.
func numberStart(s string) bool {
	if s[0] == '+' || s[0] == '-' {
		s = s[1:]
	}
	s = strings.TrimPrefix(s, ".")
	return digits(s) > 0
}

func (l *lexer) number(s string) token {
	kind, n := integer, 0
	if s[0] == '+' || s[0] == '-' {
		n = 1
	}
	n += digits(s[n:])
	if n < len(s) && s[n] == '.' {
		kind = double
		n++
		n += digits(s[n:])
	}
	if n < len(s) && (s[n] == 'e' || s[n] == 'E') {
		kind = double
		n++
		if n < len(s) && (s[n] == '+' || s[n] == '-') {
			n++
		}
		n += digits(s[n:])
	}
	return l.take(kind, n)
}

func (l *lexer) binding(s string) token {
	kind, n := named, nameLength(s[1:])
	if n == 0 {
		kind, n = positional, digits(s[1:])
	}
	if n == 0 {
		return l.invalid(l.at, "@ is followed by a name or a number, without a space")
	}
	t := l.take(kind, 1+n)
	t.value = t.text[1:]
	return t
}

// escapes has the characters that may follow a backslash in a string, with their meanings. The list
// is MySQL's: in \% and \_, the backslash stays. Google's emulators refuse all other characters
// after a backslash.
var escapes = map[byte]string{
	'0': "\x00", 'b': "\b", 'n': "\n", 'r': "\r", 't': "\t", 'Z': "\x1a",
	'\\': `\`, '\'': "'", '"': `"`, '`': "`", '%': `\%`, '_': `\_`,
}

// quoted reads a string or a name in quotes, up to the next quote of the same kind. A doubled quote
// stands for one quote, and does not end the text. The parameter what is "string" or "name", for
// errors.
func (l *lexer) quoted(kind tokenKind, what string) token {
	var value strings.Builder
	quote := l.text[l.at]
	for i := l.at + 1; i < len(l.text); i++ {
		switch c := l.text[i]; {
		case c == '\n':
			return l.invalid(i, `a %s ends on the line it starts on; a line break in it is written \n`, what)
		case c == quote && i+1 < len(l.text) && l.text[i+1] == quote:
			value.WriteByte(quote)
			i++
		case c == quote:
			if kind == quoted && value.Len() == 0 {
				return l.invalid(l.at, "a name is empty")
			}
			t := l.take(kind, i+1-l.at)
			t.value = value.String()
			return t
		case c == '\\' && i+1 < len(l.text):
			i++
			escape, ok := escapes[l.text[i]]
			if !ok {
				_, size := utf8.DecodeRuneInString(l.text[i:])
				return l.invalid(i-1, "%q is not an escape sequence", l.text[i-1:i+size])
			}
			value.WriteString(escape)
		default:
			value.WriteByte(c)
		}
	}
	return l.invalid(l.at, "a %s has no end: expected a closing %c", what, quote)
}
