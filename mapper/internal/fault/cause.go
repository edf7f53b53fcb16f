package fault

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"path"
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

// longestCause is the largest size in bytes of a cause, the part of an error's text that is the
// same for all entities with this problem.
const longestCause = 200

// Digest returns a short hash of an error's cause (see [Cause]). Log lines contain it in place of
// the cause, because they must not contain parts of an entity.
func Digest(cause string) string {
	sum := sha256.Sum256([]byte(cause))
	return hex.EncodeToString(sum[:3])
}

// Brief returns an error's text as one line. It replaces the stack of a panic by the place in the
// code where the panic occurred. So the same panic has the same text in all processes, although the
// addresses in the stack differ.
func Brief(text string) string {
	if !strings.Contains(text, "panic: ") {
		return text
	}
	lines := strings.Split(text, "\n")
	for i := 1; i < len(lines)-1; i++ {
		if file, ok := strings.CutPrefix(lines[i+1], "\t"); ok { // the line after a frame's function names its file
			file, _, _ = strings.Cut(file, " +0x")
			name := arguments.ReplaceAllString(lines[i], "")
			return fmt.Sprintf("%s, in %s (%s)", strings.Join(lines[:i], "\n"), path.Base(name), path.Base(file))
		}
	}
	return lines[0]
}

// arguments matches the arguments of a function at the end of a line of a stack trace.
var arguments = regexp.MustCompile(`\([^()]*\)$`)

// Cause returns a text that is the same for entities with the same problem. In the error's text, it
// replaces everything that differs between entities by "#": numbers, words with digits, quoted
// texts, addresses, and the given names, which come from the entity's key.
func Cause(text string, names ...string) string {
	text = Brief(text)
	for _, name := range names {
		if len(name) > 2 { // a shorter name may also be a part of other words
			text = strings.ReplaceAll(text, name, "#")
		}
	}
	// People read and type the cause, so it has only printable characters.
	text = strings.Map(func(r rune) rune {
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
