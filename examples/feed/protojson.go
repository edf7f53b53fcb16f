package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Feeds are the JSON of protocol buffers (https://protobuf.dev/programming-guides/json/). A field
// may be left out or null, and its name may be start_sec or startSec. An int64 may be a number or a
// string, and an enum its name or its number.

// A valueType checks a value that was parsed from JSON. It returns the value in a normal form,
// which is the same for equal values, such as 5 and "5".
type valueType func(v any) (any, error)

func wrong(v any, want string) error {
	shown, _ := json.Marshal(v)
	if len(shown) > 60 {
		shown = append(shown[:60:60], "…"...)
	}
	return fmt.Errorf("it is %s, want %s", shown, want)
}

func text(v any) (any, error) {
	if s, ok := v.(string); ok {
		return s, nil
	}
	return nil, wrong(v, "a string")
}

var number = regexp.MustCompile(`^-?[0-9]{1,30}(\.[0-9]{1,30})?([eE][+-]?[0-9]{1,3})?$`)

// digits returns the text of a number, or of a string that is a number.
func digits(v any) (string, bool) {
	var s string
	switch v := v.(type) {
	case json.Number:
		s = v.String()
	case string:
		s = v
	}
	return s, number.MatchString(s)
}

func double(v any) (any, error) {
	s, ok := digits(v)
	f, err := strconv.ParseFloat(s, 64)
	if !ok || err != nil {
		return nil, wrong(v, "a number")
	}
	return f, nil
}

// integer returns the type of the integers from least to most.
func integer(least, most int64) valueType {
	return func(v any) (any, error) {
		s, ok := digits(v)
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil { // 1.5e9 is also an integer
			var f float64
			f, err = strconv.ParseFloat(s, 64)
			ok = ok && f == math.Trunc(f) && math.Abs(f) <= 1<<53
			n = int64(f)
		}
		if !ok || err != nil {
			return nil, wrong(v, "an integer")
		}
		if n < least || n > most {
			return nil, wrong(v, fmt.Sprintf("%d to %d", least, most))
		}
		return n, nil
	}
}

var (
	int64s = integer(math.MinInt64, math.MaxInt64)
	counts = integer(0, math.MaxInt64)
)

// seconds is the type of times in seconds since 1970. It refuses a time after the year 9999, which
// is probably in milliseconds.
func seconds(v any) (any, error) {
	n, err := integer(1, 253402300799)(v)
	if err != nil {
		return nil, fmt.Errorf("%w, in seconds since 1970", err)
	}
	return n, nil
}

// unsigned is the type of a uint64. Its normal form is the text of digits.
func unsigned(v any) (any, error) {
	s, ok := digits(v)
	n, err := strconv.ParseUint(s, 10, 64)
	if !ok || err != nil {
		return nil, wrong(v, "an integer from 0 to 2^64-1, as a string or a number")
	}
	return strconv.FormatUint(n, 10), nil
}

// enum returns the type of an enum. The names of its values are given in the order of their
// numbers, from 0.
func enum(values ...string) valueType {
	return func(v any) (any, error) {
		if s, ok := v.(string); ok && slices.Contains(values, s) {
			return s, nil
		}
		if s, ok := v.(json.Number); ok {
			if i, err := strconv.Atoi(s.String()); err == nil && i >= 0 && i < len(values) {
				return values[i], nil
			}
		}
		return nil, wrong(v, "one of "+strings.Join(values, ", "))
	}
}

func list(of valueType) valueType {
	return func(v any) (any, error) {
		values, ok := v.([]any)
		if !ok {
			return nil, wrong(v, "a list")
		}
		read := make([]any, len(values))
		for i, value := range values {
			var err error
			if read[i], err = of(value); err != nil {
				return nil, fmt.Errorf("[%d]: %w", i, err)
			}
		}
		return read, nil
	}
}

// message returns the type of an object with the given fields. It refuses an object that lacks a
// required field, and does not check further fields.
func message(fields map[string]valueType, required ...string) valueType {
	return func(v any) (any, error) {
		given, ok := v.(map[string]any)
		if !ok {
			return nil, wrong(v, "an object")
		}
		read := make(map[string]any, len(given))
		for _, name := range slices.Sorted(maps.Keys(given)) {
			value, field := given[name], protoName(name)
			of, known := fields[field]
			if !known {
				of, field = func(v any) (any, error) { return v, nil }, name
			}
			if value == nil { // null means that the field is missing
				continue
			}
			if _, twice := read[field]; twice {
				return nil, fmt.Errorf("%s is there twice", field)
			}
			var err error
			if read[field], err = of(value); err != nil {
				return nil, fmt.Errorf("%s: %w", field, err)
			}
		}
		for _, field := range required {
			if read[field] == nil || read[field] == "" {
				return nil, fmt.Errorf("it has no %s", field)
			}
		}
		return read, nil
	}
}

// protoName converts the JSON name of a field into its name in the protocol: startSec into
// start_sec. It returns other names unchanged.
func protoName(name string) string {
	if strings.Contains(name, "_") || name == "" || name[0] >= 'A' && name[0] <= 'Z' {
		return name
	}
	var b strings.Builder
	for _, r := range name {
		if r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
			r += 'a' - 'A'
		}
		b.WriteRune(r)
	}
	return b.String()
}

// next parses the next value of d.
func next(d *json.Decoder) (any, error) {
	var text json.RawMessage
	if err := d.Decode(&text); err != nil {
		return nil, err
	}
	return parseValue(text)
}

// parseValue parses JSON. Numbers keep their text, so that large ones are exact.
func parseValue(text []byte) (any, error) {
	if !utf8.Valid(text) {
		return nil, errors.New("it is not valid UTF-8")
	}
	exact := json.NewDecoder(bytes.NewReader(text))
	exact.UseNumber()
	return value(exact)
}

// value parses a value token by token, to find repeated names in objects. encoding/json would
// silently keep the last value of a name.
func value(d *json.Decoder) (any, error) {
	token, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch token {
	case json.Delim('{'):
		object := make(map[string]any)
		err := eachKey(d, func(name string) (err error) {
			if _, twice := object[name]; twice {
				return fmt.Errorf("%q is there twice", name)
			}
			object[name], err = value(d)
			return err
		})
		return object, err
	case json.Delim('['):
		values := []any{}
		for d.More() {
			v, err := value(d)
			if err != nil {
				return nil, err
			}
			values = append(values, v)
		}
		_, err := d.Token()
		return values, err
	}
	return token, nil
}

// eachKey reads the members of an object whose opening brace was read. For each it calls read with
// the name; read must read the value. Then eachKey reads the closing brace.
func eachKey(d *json.Decoder, read func(name string) error) error {
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		if err := read(fmt.Sprint(name)); err != nil {
			return err
		}
	}
	_, err := d.Token()
	return err
}
