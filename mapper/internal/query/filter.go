package query

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A Filter is a condition that all entities of a query satisfy. See mapper.Filter for the meaning
// of its fields.
type Filter struct {
	Property     string
	Op           string
	Value        any
	AllowAnyType bool
}

// maxIn is the largest number of values in an "in" filter. It is also the largest number of
// combinations of the values of all "in" filters of a query [Datastore's documentation of OR
// queries].
const maxIn = 30

var operators = []string{"=", "<", "<=", ">", ">=", "in"}

// normal returns the filter in its normal form, or an error if it is invalid. Its value then has a
// type that the Go client returns when it reads: an int becomes an int64.
func (f Filter) normal() (Filter, error) {
	fail := func(format string, args ...any) (Filter, error) {
		return f, setting.Errorf("Query.Filters: %q %s: %w", f.Property, f.Op, setting.Errorf(format, args...))
	}
	if _, share, err := shareOf(f); share {
		return f, err
	}
	switch {
	case f.Property == "" || len(f.Property) > keyspace.MaxName || !utf8.ValidString(f.Property):
		return fail("the name of the property is empty, longer than %d bytes or not UTF-8", keyspace.MaxName)
	case f.Property == "__key__":
		return fail("a range of keys is Query.Start and Query.End")
	case names.Reserved(f.Property):
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
	slices.SortFunc(all, value.Compare)
	all = slices.CompactFunc(all, func(a, b any) bool { return value.Compare(a, b) == 0 })
	if len(all) == 0 || len(all) > maxIn {
		return fail("it has %d values, and not 1 to %d", len(all), maxIn)
	}
	f.Value = all
	return f, nil
}

// elementsOfSlice returns the elements of the slice in an "in" filter. It returns an error if the
// value is not a slice of an allowed type.
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

// normalValue returns a value as the Go client would return it after it was stored and read.
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
			return nil, fmt.Errorf("the text is longer than %d bytes, which are indexed, or not UTF-8",
				keyspace.MaxName)
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
		if v == nil {
			return nil, nil
		}
		if v.Incomplete() {
			return nil, errors.New("the key is incomplete")
		}
		return v, keyspace.CheckKey(v)
	}
	return nil, fmt.Errorf("its value is a %T, which is not a bool, an integer, a float, a string, a []byte, a "+
		"time.Time, a *datastore.Key or nil", v)
}

// holds reports whether the value v of the filter's property satisfies the filter.
func (f Filter) holds(v any) bool {
	if f.Op == "in" {
		return slices.ContainsFunc(f.Value.([]any), func(w any) bool { return value.Compare(v, w) == 0 })
	}
	c := value.Compare(v, f.Value)
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

// ranges reports whether the filter is an inequality, such as "<".
func (f Filter) ranges() bool { return f.Op != "=" && f.Op != "in" }

// match reports whether an entity satisfies all filters, by Datastore's rules for arrays. An array
// satisfies an equality if one of its values does. It satisfies the inequalities on one property if
// a single value satisfies all of them.
func match(filters []Filter, e *pb.Entity) bool {
	for i, f := range filters {
		all := []Filter{f}
		if f.ranges() {
			if slices.ContainsFunc(filters[:i], func(o Filter) bool { return o.ranges() && o.Property == f.Property }) {
				continue // already checked with the first inequality on the property
			}
			for _, o := range filters[i+1:] {
				if o.ranges() && o.Property == f.Property {
					all = append(all, o)
				}
			}
		}
		if !slices.ContainsFunc(value.Indexed(e, f.Property), func(v *pb.Value) bool {
			return !slices.ContainsFunc(all, func(f Filter) bool { return !f.holds(value.Go(e, v)) })
		}) {
			return false
		}
	}
	return true
}
