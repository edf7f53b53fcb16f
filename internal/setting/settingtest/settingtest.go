// Package settingtest finds Go names in texts. Tests use it to check that messages to people who do
// not read Go have none.
package settingtest

import "regexp"

// goNames matches texts that look like Go: a qualified name, a name of several words, and a
// literal.
var goNames = regexp.MustCompile(`\b[A-Za-z]+\.[A-Z]\w*|\b(?:[A-Z][a-z0-9]+){2,}\b|\b[A-Z]\w*\{|%!`)

var quoted = regexp.MustCompile(`"[^"]*"`)

// GoNames returns the parts of a text that look like names in Go. Quoted texts do not count, as
// they may be users' names.
func GoNames(text string) []string {
	return goNames.FindAllString(quoted.ReplaceAllString(text, ""), -1)
}
