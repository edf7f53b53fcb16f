package dashboard

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/url"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/strictjson"
)

// A field is the input in a form for one parameter of a mapper.
type field struct {
	operator.Param

	Value string `json:"-"` // the text that the viewer has entered
	Bad   string `json:"-"` // the error about the text; empty: none
}

// fieldsOf returns the inputs for a mapper's parameters.
func fieldsOf(params []operator.Param) []field {
	all := make([]field, len(params))
	for i, p := range params {
		all[i].Param = p
	}
	return all
}

// ID returns the ID of the input in the page.
func (f field) ID() string { return "p." + f.Name }

// Help returns a hint for the viewer about what to enter.
func (f field) Help() string {
	switch f.Kind {
	case "duration":
		return "such as 90s or 2h"
	case "time":
		return "such as 2026-10-24T00:00:00Z"
	case "lines":
		return "one per line"
	case "json":
		return `JSON, such as 5, true or "text"`
	}
	return ""
}

// params encodes the values in the fields' inputs as JSON. It stores errors in the fields, and
// returns the first one.
func params(fields []field, q url.Values) (encoded json.RawMessage, err error) {
	for name := range q {
		if known := slices.ContainsFunc(fields, func(f field) bool { return f.ID() == name }); strings.HasPrefix(name,
			"p.") && !known {
			return nil, operator.BadRequest(fmt.Sprintf("the mapper has no parameter %.100q", name[2:]))
		}
	}
	all := make(map[string]any)
	for i := range fields {
		f := &fields[i]
		f.Value = q.Get(f.ID())
		value, bad := f.encode()
		if bad != nil {
			if f.Bad = bad.Error(); err == nil {
				err = operator.BadRequest(fmt.Sprintf("the parameter %s: %s", f.Name, f.Bad))
			}
			continue
		}
		if value == nil {
			continue
		}
		if f.Path == nil {
			return value, err
		}
		at := all
		for _, name := range f.Path[:len(f.Path)-1] {
			next, ok := at[name].(map[string]any)
			if !ok {
				next = make(map[string]any)
				at[name] = next
			}
			at = next
		}
		at[f.Path[len(f.Path)-1]] = value
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(all)
}

// encode returns the field's input as JSON, or nil if the input is empty.
func (f *field) encode() (value json.RawMessage, err error) {
	text := f.Value
	if f.Kind != "text" {
		text = strings.TrimSpace(text)
	}
	if text == "" && f.Required {
		return nil, errors.New("it is missing")
	}
	if text == "" {
		return nil, nil
	}
	v, err := f.parse(text)
	if err != nil {
		return nil, err
	}
	if value, err = json.Marshal(v); err != nil {
		return nil, err
	}
	if f.Quoted {
		if value, err = json.Marshal(string(value)); err != nil {
			return nil, err
		}
	}
	return value, f.try(value)
}

// parse converts a text to a value of the field's kind.
func (f *field) parse(text string) (any, error) {
	switch f.Kind {
	case "bool":
		return text == "on" || text == "true", nil // any other text is false
	case "int":
		if _, err := strconv.ParseInt(text, 10, 64); err != nil {
			if _, err := strconv.ParseUint(text, 10, 64); err != nil {
				return nil, fmt.Errorf("%.100q is no whole number", text)
			}
		}
		return json.Number(text), nil
	case "float":
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no number", text)
		}
		if finite := !math.IsNaN(n) && !math.IsInf(n, 0); finite && !strictjson.Exact(text) {
			return nil, fmt.Errorf("%.100q is no float: the nearest one is %v", text, n)
		}
		return n, nil
	case "duration":
		d, err := operator.ParsePeriod(text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no duration: it is written as 90s, 2h or 30d", text)
		}
		return d, nil
	case "time":
		t, err := time.Parse(time.RFC3339Nano, text)
		if err != nil {
			return nil, fmt.Errorf("%.100q is no time: it is written as 2026-10-24T00:00:00Z", text)
		}
		return t, nil
	case "lines":
		lines := []string{}
		for line := range strings.Lines(text) {
			if line = strings.TrimSpace(line); line != "" {
				lines = append(lines, line)
			}
		}
		return lines, nil
	case "json":
		if err := strictjson.Check([]byte(text)); err != nil {
			return nil, fmt.Errorf("%.100q is no JSON: %w", text, err)
		}
		return json.RawMessage(text), nil
	}
	return text, nil
}

// try decodes a value into the field's Go type. It returns an error if the value is out of the
// type's range.
func (f *field) try(value json.RawMessage) error {
	if f.Quoted || f.Type == nil {
		return nil // only the struct that contains the value can decode it
	}
	if err := json.Unmarshal(value, reflect.New(f.Type).Interface()); err != nil {
		return fmt.Errorf("%.100q does not fit: %w", f.Value, err)
	}
	return nil
}
