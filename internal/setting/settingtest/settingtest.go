// Package settingtest is for tests of what people are told who do not read Go.
package settingtest

import "regexp"

// goNames matches what looks like Go: a name behind another one and a dot, a name of several words,
// and a literal.
var goNames = regexp.MustCompile(`\b[A-Za-z]+\.[A-Z]\w*|\b(?:[A-Z][a-z0-9]+){2,}\b|\b[A-Z]\w*\{|%!`)

var quoted = regexp.MustCompile(`"[^"]*"`)

// GoNames returns what in a text looks like a name in Go, but for what is in quotes: that is what
// somebody has called something.
func GoNames(text string) []string {
	return goNames.FindAllString(quoted.ReplaceAllString(text, ""), -1)
}
