// Package settingtest finds Go names in texts. Tests use it to check that messages for people who
// do not read Go contain none.
package settingtest

import "regexp"

// goNames matches texts that look like Go: a name with its package or type, a name of several words
// in camel case, and a composite literal. It also matches a fault of a format, "%!".
var goNames = regexp.MustCompile(`\b[A-Za-z]+\.[A-Z]\w*|\b(?:[A-Z][a-z0-9]+){2,}\b|\b[A-Z]\w*\{|%!`)

var quoted = regexp.MustCompile(`"[^"]*"`)

// GoNames returns the parts of a text that look like Go names. It ignores texts in quotes, which
// may be users' names.
func GoNames(text string) []string {
	return goNames.FindAllString(quoted.ReplaceAllString(text, ""), -1)
}
