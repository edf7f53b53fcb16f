package gql

import (
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A token is a word, a literal, a binding site or a sign in a query.
type token struct {
	kind  tokenKind
	at    int    // the byte offset in the query
	text  string // the text in the query
	value string // the meaning of the text; see the constants of tokenKind
	err   error  // why the token is invalid, or nil
}

type tokenKind int

const (
	end        tokenKind = iota
	invalid              // a text that is no token; its err says why
	sign                 // a sign such as "="; value: the sign
	keyword              // a reserved word; value: the word in upper case
	word                 // a name without quotes; value: the name
	quoted               // a name in backquotes; value: the name
	str                  // a string; value: the text in the quotes
	integer              // an integer with its sign
	double               // a floating-point number with its sign
	named                // a binding site such as @name; value: the name
	positional           // a binding site such as @1; value: the number
)

// keywords are the reserved words. Used as names, they need backquotes. Google's emulators refuse
// exactly these words without backquotes; the GQL reference lists only some of them. KEY, PROJECT,
// FIRST and others are not reserved, because they have a meaning only before a parenthesis.
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

// isName reports whether the token can be the name of a kind or property.
func (t token) isName() bool { return t.kind == word || t.kind == quoted }

// maxShown is the largest part of a query that an error shows, in bytes.
const maxShown = 60

// String returns the token's text for an error message.
func (t token) String() string {
	if t.kind == end {
		return "the end of the query"
	}
	return show(t.text)
}

// show returns a text in quotes for an error message. A long text is cut off.
func show(text string) string {
	if len(text) <= maxShown {
		return fmt.Sprintf("%q", text)
	}
	cut := 0
	for i := range text { // find the end of a character
		if i > maxShown {
			break
		}
		cut = i
	}
	return fmt.Sprintf("%q...", text[:cut])
}

// Path returns the path of a property in GQL: its names joined by dots, in backquotes where
// necessary.
func Path(path string) string {
	for name := range strings.SplitSeq(path, ".") {
		if !plain(name) {
			return quote(path)
		}
	}
	return path
}

// Name returns the name of a kind or a property in GQL, in backquotes if necessary.
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
