// Package setting makes errors about settings. Each reader sees the name of a setting that he
// knows. This is the field in a Go program, the JSON name in a request, the flag on a command line,
// or the label in a form.
//
// [Errorf] makes such an error. Its format has the settings' Go names. [In] returns the text of an
// error with other names, even if other errors wrap it. It replaces names only in formats, and
// never in users' texts.
package setting

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Name is the Go name of a setting, such as StartOptions.PageSize, or of a method, such as
// Job.Move. If an argument of [Errorf] is a Name, readers also see it under the name that they
// know.
type Name string

// name matches a Go name such as StartOptions.PageSize in the format string of an error.
var name = regexp.MustCompile(`\b(?:(?:StartOptions|PlanOptions|CleanUpOptions|UndoOptions|RetryOptions|` +
	`VerifyOptions|Query|Filter|Rate|Job)(?:\.[A-Z]\w*)+|RetainAlways\b)`)

// Find returns the Go names of all settings in the format string of an error.
func Find(format string) []string { return name.FindAllString(format, -1) }

// Errorf returns an error about settings, which [In] can show with other names. Its arguments are
// as for fmt.Errorf.
func Errorf(format string, args ...any) error {
	return &about{fmt.Errorf(format, args...), format, args}
}

// Dollars returns an amount as a text with all its digits, such as $0.00001.
func Dollars(amount float64) string { return "$" + strconv.FormatFloat(amount, 'f', -1, 64) }

// Up returns the least allowed value of a setting as a text for an error. The text has three
// digits. It is rounded up, so that the shown value is allowed.
func Up(least float64) string {
	round := func(x float64) float64 {
		// the number that the text with three digits stands for
		x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'e', 2, 64), 64)
		return x
	}
	up := round(least)
	if up < least {
		up = round(up + math.Pow(10, math.Floor(math.Log10(up))-2))
	}
	return strconv.FormatFloat(up, 'f', -1, 64)
}

// Renamed returns the error err with other names of settings: a name that starts with from starts
// with to instead. An example is "UndoOptions." instead of "StartOptions.". If err is nil, it
// returns nil.
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

// An about is an error from [Errorf]: a format with names of settings, and the arguments.
type about struct {
	error

	format string
	args   []any
}

// Unwrap returns the errors among the arguments that the format wraps with %w.
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

// In returns the text of an error in which settings have other names. For each setting, it calls
// call with the Go name, and uses the result.
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
			continue // the text of the outer error does not contain this text
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
