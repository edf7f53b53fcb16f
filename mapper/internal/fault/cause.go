package fault

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
	"unicode"
)

var (
	quoted  = regexp.MustCompile("\"[^\"]*\"|'[^']*'|`[^`]*`")
	address = regexp.MustCompile(`[^\s<>()]+@[^\s<>()]+`)
	number  = regexp.MustCompile(`[\pL\pN_-]*\pN[\pL\pN_.-]*`)
	space   = regexp.MustCompile(`\s+`)
)

// longestCause is how many bytes of a text its cause has.
const longestCause = 200

// Digest returns a name of a cause that says nothing of it: for log lines, which must have nothing
// of an entity. Equal causes have equal ones.
func Digest(cause string) string {
	sum := sha256.Sum256([]byte(cause))
	return hex.EncodeToString(sum[:3])
}

// Cause returns what the text of an error has in common with those of other entities that have
// failed for the same reason: the text without numbers, words that have digits, what is quoted,
// addresses, and the names in the entity's key. All of that is "#".
func Cause(text string, names ...string) string {
	for _, name := range names {
		if len(name) > 2 { // a shorter one is part of other words
			text = strings.ReplaceAll(text, name, "#")
		}
	}
	text = strings.Map(func(r rune) rune { // it is typed, and shown
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "#"))
	text = quoted.ReplaceAllString(text, "#")
	text = address.ReplaceAllString(text, "#")
	text = number.ReplaceAllString(text, "#")
	text = strings.TrimSpace(space.ReplaceAllString(text, " "))
	return strings.ToValidUTF8(text[:min(len(text), longestCause)], "")
}
