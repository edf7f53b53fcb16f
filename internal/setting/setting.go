// Package setting makes errors that know which settings they are about. So each surface can use the
// names that its readers know. A Go program uses the field, a request the JSON name, a command line
// the flag, and a form the label.
//
// [Errorf] makes such an error. Its format has the settings by their Go names. Only formats are
// searched for names, and never users' texts. [In] writes the error, and all errors that wrap it,
// with other names.
package setting

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Name is the Go name of a setting, such as StartOptions.PageSize, or of a method, such as
// Job.Move. As an argument of [Errorf] it is replaced by the reader's name.
type Name string

// name matches a setting in a format.
var name = regexp.MustCompile(`\b(?:(?:StartOptions|PlanOptions|CleanUpOptions|UndoOptions|RetryOptions|` +
	`VerifyOptions|Query|Filter|Rate|Job)(?:\.[A-Z]\w*)+|RetainAlways\b)`)

// Find returns the settings that a format names.
func Find(format string) []string { return name.FindAllString(format, -1) }

// Errorf is fmt.Errorf for an error about settings.
func Errorf(format string, args ...any) error {
	return &about{fmt.Errorf(format, args...), format, args}
}

// Renamed returns an error in which settings of the type from are settings of the type to. The
// settings have the same fields there. It returns nil for nil.
func Renamed(err error, from, to string) error {
	if err == nil {
		return nil
	}
	return renamed{err, from, to}
}

type renamed struct {
	error

	from, to string
}

func (r renamed) Error() string { return r.in(func(n Name) string { return string(n) }) }
func (r renamed) Unwrap() error { return r.error }

func (r renamed) in(call func(Name) string) string {
	return In(r.error, func(n Name) string {
		if field, ok := strings.CutPrefix(string(n), r.from); ok {
			n = Name(r.to + field)
		}
		return call(n)
	})
}

// An about is an error that Errorf has made.
type about struct {
	error

	format string
	args   []any
}

// Unwrap returns the wrapped errors.
func (a *about) Unwrap() []error { return wrapped(a.error) }

func wrapped(err error) []error {
	switch e := err.(type) { //nolint:errorlint // each error of the tree is looked at by itself
	case interface{ Unwrap() []error }:
		return e.Unwrap()
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil {
			return []error{inner}
		}
	}
	return nil
}

// In returns the text of an error with its settings under the names that call returns.
func In(err error, call func(Name) string) string {
	switch e := err.(type) { //nolint:errorlint // those that it wraps are looked at below
	case *about:
		return e.in(call)
	case renamed:
		return e.in(call)
	}
	text, from := err.Error(), 0
	for _, inner := range wrapped(err) {
		before := inner.Error()
		at := strings.Index(text[from:], before)
		if at < 0 || before == "" {
			continue // the wrapping error's text does not contain it
		}
		after := In(inner, call)
		text = text[:from+at] + after + text[from+at+len(before):]
		from += at + len(after)
	}
	return text
}

func (a *about) in(call func(Name) string) string {
	args := slices.Clone(a.args)
	for i, arg := range args {
		switch arg := arg.(type) {
		case Name:
			args[i] = call(arg)
		case error:
			args[i] = In(arg, call)
		}
	}
	format := name.ReplaceAllStringFunc(a.format, func(found string) string {
		return strings.ReplaceAll(call(Name(found)), "%", "%%")
	})
	return fmt.Sprintf(strings.ReplaceAll(format, "%w", "%s"), args...)
}
