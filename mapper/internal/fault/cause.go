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

// longestCause is the most bytes of a cause.
const longestCause = 200

// Digest returns a short hash of a cause. Log lines have it instead of the cause, because they must
// not contain parts of an entity.
func Digest(cause string) string {
	sum := sha256.Sum256([]byte(cause))
	return hex.EncodeToString(sum[:3])
}

// Cause returns the part of an error's text that entities with the same problem have in common. It
// replaces with "#" everything that differs between entities: numbers, words with digits, quoted
// texts, addresses, and the names in the entity's key.
func Cause(text string, names ...string) string {
	for _, name := range names {
		if len(name) > 2 { // a shorter one is also part of other words
			text = strings.ReplaceAll(text, name, "#")
		}
	}
	text = strings.Map(func(r rune) rune { // people type and read the text
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
