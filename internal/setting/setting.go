// Package setting has errors carry which settings they are about, so that each surface names them
// as its reader does: a Go program by the field, a request by its JSON, a command line by the flag,
// and a form by the label.
//
// An error is made by [Errorf], whose format has the settings by their Go names. Only formats are
// looked at, which are ours, and never what a user has called something. [In] writes such an error,
// and all that wraps it, with other names.
package setting

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// A Name is that of a setting in Go: StartOptions.PageSize, or Job.Move for something to do. As an
// argument of [Errorf] it is written as its reader calls it.
type Name string

// name matches a setting in a format.
var name = regexp.MustCompile(`\b(?:(?:StartOptions|PlanOptions|CleanUpOptions|UndoOptions|RetryOptions|` +
	`VerifyOptions|Query|Filter|Rate|Job)(?:\.[A-Z]\w*)+|RetainAlways\b)`)

// Find returns the settings that a format names.
func Find(format string) []string { return name.FindAllString(format, -1) }

// Errorf is fmt.Errorf for an error that is about settings.
func Errorf(format string, args ...any) error {
	return &about{fmt.Errorf(format, args...), format, args}
}

// Renamed returns an error whose settings have another type, in which they are what they are in the
// first one. That of nil is nil.
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

// An about is an error that is about settings.
type about struct {
	error

	format string
	args   []any
}

// Unwrap returns the errors that it wraps.
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

// In returns the text of an error with its settings under the names that a function gives them.
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
			continue // the text of the error that wraps it does not have it
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
