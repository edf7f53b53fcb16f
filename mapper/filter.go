package mapper

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Filter is a condition that a query's entities satisfy.
type Filter struct {
	// Property is the name of an indexed property. Those of entities inside have dots in
	// their names.
	Property string

	// Op is "=", "<", "<=", ">", ">=" or "in".
	Op string

	// Value is a bool, an integer, a float, a string, a []byte, a time.Time, a
	// *datastore.Key, or nil for null; for "in" a slice of up to 30 of them.
	Value any
}

// Where returns a filter: Where("active", "=", true).
func Where(property, op string, value any) Filter { return Filter{property, op, value} }

// maxIn is how many values an "in" filter can have, and all of a query together come to, as
// Datastore's documentation of OR queries has it.
const maxIn = 30

var operators = []string{"=", "<", "<=", ">", ">=", "in"}

// normal returns the filter with its value as one of the types that the client returns.
func (f Filter) normal() (Filter, error) {
	fail := func(format string, args ...any) (Filter, error) {
		return f, fmt.Errorf("Query.Filters: %q %s: %w", f.Property, f.Op, fmt.Errorf(format, args...))
	}
	switch {
	case f.Property == "" || len(f.Property) > keyspace.MaxName || !utf8.ValidString(f.Property):
		return fail("the name of the property is empty, longer than %d bytes or not UTF-8", keyspace.MaxName)
	case f.Property == "__key__":
		return fail("a range of keys is Query.Start and Query.End")
	case keyspace.Reserved(f.Property):
		return fail("the name is reserved by Datastore")
	case f.Op == "!=" || f.Op == "not-in":
		return fail("it does not go with ranges of keys; filter in the function")
	case !slices.Contains(operators, f.Op):
		return fail("the operator is not one of %s", strings.Join(operators, ", "))
	}
	if f.Op != "in" {
		v, err := normalValue(f.Value)
		if err != nil {
			return fail("%w", err)
		}
		f.Value = v
		return f, nil
	}
	values, err := elementsOfSlice(f.Value)
	if err != nil {
		return fail("%w", err)
	}
	all := make([]any, len(values))
	for i, v := range values {
		if all[i], err = normalValue(v); err != nil {
			return fail("%w", err)
		}
	}
	slices.SortFunc(all, keyspace.CompareValues)
	all = slices.CompactFunc(all, func(a, b any) bool { return keyspace.CompareValues(a, b) == 0 })
	if len(all) == 0 || len(all) > maxIn {
		return fail("it has %d values, and not 1 to %d", len(all), maxIn)
	}
	f.Value = all
	return f, nil
}

// elementsOfSlice returns the elements of the slices that an "in" filter can have.
func elementsOfSlice(v any) (all []any, err error) {
	switch v := v.(type) {
	case []any:
		return v, nil
	case []string:
		return anys(v), nil
	case []int:
		return anys(v), nil
	case []int64:
		return anys(v), nil
	case []float64:
		return anys(v), nil
	case []time.Time:
		return anys(v), nil
	case []*datastore.Key:
		return anys(v), nil
	}
	return nil, fmt.Errorf("its value is a %T, and not a slice of values", v)
}

func anys[T any](s []T) []any {
	all := make([]any, len(s))
	for i := range s {
		all[i] = s[i]
	}
	return all
}

// normalValue returns a value as the client would return it from the database.
func normalValue(v any) (any, error) {
	switch v := v.(type) {
	case nil, bool, int64, float64:
		return v, nil
	case int:
		return int64(v), nil
	case int32:
		return int64(v), nil
	case float32:
		return float64(v), nil
	case string:
		if len(v) > keyspace.MaxName || !utf8.ValidString(v) {
			return nil, fmt.Errorf("the text is longer than %d bytes, which are indexed, or not UTF-8", keyspace.MaxName)
		}
		return v, nil
	case []byte:
		if len(v) > keyspace.MaxName {
			return nil, fmt.Errorf("it is longer than %d bytes, which are indexed", keyspace.MaxName)
		}
		return v, nil
	case time.Time:
		if !keyspace.Storable(v) {
			return nil, fmt.Errorf("the time %v is not in the years 1 to 9999", v)
		}
		return v.UTC().Truncate(time.Microsecond), nil
	case *datastore.Key:
		if v.Incomplete() {
			return nil, errors.New("the key is incomplete")
		}
		return v, keyspace.CheckKey(v)
	}
	return nil, fmt.Errorf("its value is a %T, which is not a bool, an integer, a float, a string, a []byte, a time.Time, a *datastore.Key or nil", v)
}

// holds reports whether a value satisfies the filter.
func (f Filter) holds(v any) bool {
	if f.Op == "in" {
		return slices.ContainsFunc(f.Value.([]any), func(w any) bool { return keyspace.CompareValues(v, w) == 0 })
	}
	c := keyspace.CompareValues(v, f.Value)
	switch f.Op {
	case "=":
		return c == 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// ranges reports whether the filter is an inequality.
func (f Filter) ranges() bool { return f.Op != "=" && f.Op != "in" }

// match reports whether properties satisfy filters as the database sees it: an array satisfies
// an equality if one of its values does, and inequalities on one property if one of its values
// satisfies all of them.
func match(filters []Filter, properties []datastore.Property) bool {
	for i, f := range filters {
		all := []Filter{f}
		if f.ranges() {
			if slices.ContainsFunc(filters[:i], func(o Filter) bool { return o.ranges() && o.Property == f.Property }) {
				continue // seen to already
			}
			for _, o := range filters[i+1:] {
				if o.ranges() && o.Property == f.Property {
					all = append(all, o)
				}
			}
		}
		if !slices.ContainsFunc(indexedValues(properties, f.Property), func(v any) bool {
			return !slices.ContainsFunc(all, func(f Filter) bool { return !f.holds(v) })
		}) {
			return false
		}
	}
	return true
}

// indexedValues returns the values under which properties are in the index of a name: each
// element of an array, and those of entities inside under names joined by dots.
func indexedValues(properties []datastore.Property, name string) (values []any) {
	for _, p := range properties {
		rest, inside := strings.CutPrefix(name, p.Name+".")
		if p.NoIndex || p.Name != name && !inside {
			continue
		}
		all := []any{p.Value}
		if array, ok := p.Value.([]any); ok {
			all = array
		}
		for _, v := range all {
			e, isEntity := v.(*datastore.Entity)
			switch {
			case isEntity && e != nil && inside:
				values = append(values, indexedValues(e.Properties, rest)...)
			case !isEntity && !inside:
				values = append(values, v)
			}
		}
	}
	return values
}

// A jsonValue is a value of a filter in JSON: true, "text", 5 and null are what they look like,
// and so is 5.0, which is a float. Others are objects that name their type: {"time": "2026-…"},
// {"key": "…"} as datastore.Key.Encode has it, {"bytes": "…"} in base64, {"float": "NaN"}.
type jsonValue struct{ v any }

type typedValue struct {
	Time  *time.Time     `json:"time,omitempty"`
	Key   *datastore.Key `json:"key,omitempty"`
	Bytes *string        `json:"bytes,omitempty"`
	Float *string        `json:"float,omitempty"`
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
			return json.Marshal(typedValue{Float: &s})
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
		j.v, err = n.Float64()
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
	switch {
	case t.Time != nil:
		j.v = *t.Time
	case t.Key != nil:
		j.v = t.Key
	case t.Bytes != nil:
		j.v, err = base64.StdEncoding.DecodeString(*t.Bytes)
	case t.Float != nil:
		j.v, err = strconv.ParseFloat(*t.Float, 64)
	default:
		err = errors.New("a value of a filter is an object without time, key, bytes or float")
	}
	return err
}

type jsonFilter struct {
	Property string          `json:"property"`
	Op       string          `json:"op"`
	Value    json.RawMessage `json:"value"`
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
	return json.Marshal(jsonFilter{f.Property, f.Op, encoded})
}

// UnmarshalJSON implements json.Unmarshaler.
func (f *Filter) UnmarshalJSON(b []byte) error {
	var j jsonFilter
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.DisallowUnknownFields()
	if err := d.Decode(&j); err != nil {
		return fmt.Errorf("a filter: %w", err)
	}
	*f = Filter{Property: j.Property, Op: j.Op}
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
