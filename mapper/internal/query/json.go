package query

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A jsonValue is a value of a filter in JSON: true, "text", 5 and null are what they look like,
// and so is 5.0, which is a float. Others are objects that name their type: {"time": "2026-…"},
// {"key": "…"} as datastore.Key.Encode has it, {"bytes": "…"} in base64, {"float": "NaN"} or {"float": 5},
// {"int": "5"}.
type jsonValue struct{ v any }

type typedValue struct {
	Time  *time.Time     `json:"time,omitempty"`
	Key   *datastore.Key `json:"key,omitempty"`
	Bytes *string        `json:"bytes,omitempty"`
	Float *number        `json:"float,omitempty"`
	Int   *number        `json:"int,omitempty"`
}

// A number is written as one, or as a text: some programs write 5.0 as 5, and others have no large
// integers.
type number string

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	s := string(b)
	if strings.HasPrefix(s, `"`) {
		return json.Unmarshal(b, (*string)(n))
	}
	*n = number(s)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (j jsonValue) MarshalJSON() ([]byte, error) {
	switch v := j.v.(type) {
	case time.Time:
		return json.Marshal(typedValue{Time: &v})
	case *datastore.Key:
		return json.Marshal(typedValue{Key: v})
	case []byte:
		s := base64.StdEncoding.EncodeToString(v)
		return json.Marshal(typedValue{Bytes: &s})
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return json.Marshal(typedValue{Float: (*number)(&s)})
		}
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return []byte(s), nil
	}
	return json.Marshal(j.v)
}

// UnmarshalJSON implements json.Unmarshaler.
func (j *jsonValue) UnmarshalJSON(b []byte) error {
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	if strings.HasPrefix(strings.TrimSpace(string(b)), "{") {
		return j.typed(d)
	}
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	n, number := v.(json.Number)
	if !number {
		if _, list := v.([]any); list {
			return errors.New("a value of a filter is a list, which only \"in\" has")
		}
		j.v = v
		return nil
	}
	var err error
	if strings.ContainsAny(n.String(), ".eE") {
		j.v, err = floatOf(n.String())
	} else {
		j.v, err = n.Int64()
	}
	return err
}

func (j *jsonValue) typed(d *json.Decoder) error {
	var t typedValue
	d.DisallowUnknownFields()
	if err := d.Decode(&t); err != nil {
		return fmt.Errorf("a value of a filter: %w", err)
	}
	var err error
	types := 0
	for _, there := range []bool{t.Time != nil, t.Key != nil, t.Bytes != nil, t.Float != nil, t.Int != nil} {
		types += keyspace.Present(there)
	}
	switch {
	case types > 1:
		err = errors.New("a value of a filter is an object with several of time, key, bytes, float and int")
	case t.Time != nil:
		j.v = *t.Time
	case t.Key != nil:
		j.v = t.Key
	case t.Bytes != nil:
		j.v, err = base64.StdEncoding.DecodeString(*t.Bytes)
	case t.Float != nil:
		j.v, err = floatOf(string(*t.Float))
	case t.Int != nil:
		j.v, err = strconv.ParseInt(string(*t.Int), 10, 64)
	default:
		err = errors.New("a value of a filter is an object without time, key, bytes, float or int")
	}
	return err
}

// floatOf returns the float that a number is, to all of its digits.
func floatOf(number string) (float64, error) {
	f, err := strconv.ParseFloat(number, 64)
	if err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) && !strictjson.Exact(number) {
		err = fmt.Errorf("%.60s is no float: the nearest one is %v", number, f)
	}
	return f, err
}

type jsonFilter struct {
	Property string          `json:"property"`
	Op       string          `json:"op"`
	Value    json.RawMessage `json:"value"`
	AnyType  bool            `json:"any_type,omitempty"`
}

// MarshalJSON implements json.Marshaler.
func (f Filter) MarshalJSON() ([]byte, error) {
	f, err := f.normal()
	if err != nil {
		return nil, err
	}
	var value any = jsonValue{f.Value}
	if values, ok := f.Value.([]any); ok {
		list := make([]jsonValue, len(values))
		for i, v := range values {
			list[i].v = v
		}
		value = list
	}
	encoded, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return json.Marshal(jsonFilter{f.Property, f.Op, encoded, f.AnyType})
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Filter) UnmarshalJSON(b []byte) error {
	var j jsonFilter
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return fmt.Errorf("a filter: %w", err)
	}
	*f = Filter{Property: j.Property, Op: j.Op, AnyType: j.AnyType}
	if j.Op == "in" {
		var list []jsonValue
		if err := json.Unmarshal(j.Value, &list); err != nil {
			return fmt.Errorf("the filter on %q: %w", f.Property, err)
		}
		values := make([]any, len(list))
		for i, v := range list {
			values[i] = v.v
		}
		f.Value = values
	} else {
		var v jsonValue
		if len(j.Value) == 0 {
			return fmt.Errorf("the filter on %q has no value; null is written as null", f.Property)
		}
		if err := json.Unmarshal(j.Value, &v); err != nil {
			return fmt.Errorf("the filter on %q: %w", f.Property, err)
		}
		f.Value = v.v
	}
	normal, err := f.normal()
	*f = normal
	return err
}
