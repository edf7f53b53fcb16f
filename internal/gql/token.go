package gql

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A token is a word, a literal, a binding site or a sign of the query.
type token struct {
	kind  tokenKind
	at    int    // byte offset
	text  string // as written
	value string // its meaning; see the kinds
	err   error  // of an invalid token
}

type tokenKind int

const (
	end        tokenKind = iota
	invalid              // err has the reason
	sign                 // value: the sign
	keyword              // value: the keyword in upper case
	word                 // a name without quotes. value: the name
	quoted               // a name in backquotes. value: the name
	str                  // value: the text in the quotes
	integer              // with its sign
	double               // with its sign
	named                // @name. value: the name
	positional           // @1. value: the number
)

// keywords are the names that need backquotes: those that Google's emulators refuse without. The
// reference leaves out some of them. KEY, PROJECT, FIRST and others are not keywords: they have a
// meaning only before a parenthesis.
var keywords = map[string]bool{
	"AGGREGATE": true, "ALL": true, "ANCESTOR": true, "AND": true, "ANY": true,
	"AS": true, "ASC": true, "AVG": true, "BETWEEN": true, "BY": true,
	"CHILD": true, "CONTAINS": true, "COUNT": true, "COUNT_UP_TO": true,
	"DESC": true, "DESCENDANT": true, "DISTINCT": true, "FALSE": true,
	"FROM": true, "GROUP": true, "HAS": true, "HAVING": true, "IN": true,
	"IS": true, "JOIN": true, "LIKE": true, "LIMIT": true, "NOT": true,
	"NULL": true, "OFFSET": true, "ON": true, "OR": true, "ORDER": true,
	"OVER": true, "PARENT": true, "SELECT": true, "SUM": true, "TRUE": true,
	"WHERE": true,
}

// is reports whether the token is the given keyword or sign.
func (t token) is(value string) bool {
	return (t.kind == keyword || t.kind == sign) && t.value == value
}

// isName reports whether the token is the name of a kind or a property.
func (t token) isName() bool { return t.kind == word || t.kind == quoted }

// maxShown limits the part of the query that an error repeats, in bytes.
const maxShown = 60

// String returns the token as an error shows it.
func (t token) String() string {
	if t.kind == end {
		return "the end of the query"
	}
	return show(t.text)
}

// show quotes text for an error.
func show(text string) string {
	if len(text) <= maxShown {
		return fmt.Sprintf("%q", text)
	}
	cut := 0
	for i := range text { // cut between characters
		if i > maxShown {
			break
		}
		cut = i
	}
	return fmt.Sprintf("%q...", text[:cut])
}

// Path returns the path of a property, whose names are joined by dots, in backquotes if it needs
// them.
func Path(path string) string {
	for name := range strings.SplitSeq(path, ".") {
		if !plain(name) {
			return quote(path)
		}
	}
	return path
}

// Name returns the name of a kind or a property, in backquotes if it needs them.
func Name(name string) string {
	if plain(name) {
		return name
	}
	return quote(name)
}

// plain reports whether a name needs no backquotes.
func plain(name string) bool {
	return name != "" && nameLength(name) == len(name) && !keywords[strings.ToUpper(name)] && utf8.ValidString(name) &&
		strings.IndexFunc(name, func(r rune) bool { return !strconv.IsPrint(r) }) < 0
}

func quote(name string) string {
	inner := strconv.Quote(name)
	inner = strings.ReplaceAll(inner[1:len(inner)-1], `\"`, `"`)
	return "`" + strings.ReplaceAll(inner, "`", "\\`") + "`"
}
