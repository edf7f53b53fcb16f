package query

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// where returns a filter with these fields.
func where(property, op string, value any) Filter {
	return Filter{Property: property, Op: op, Value: value}
}

// entity returns an entity as a message of the Datastore API. Its arguments are names and values of
// properties, in turn.
func entity(t *testing.T, properties ...any) *pb.Entity {
	t.Helper()
	var list []datastore.Property
	for i := 0; i < len(properties); i += 2 {
		list = append(list, datastore.Property{Name: properties[i].(string), Value: properties[i+1]})
	}
	e, err := pbvalue.Entity(nil, list, false)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestMatches checks that filters match entities by Datastore's rules.
func TestMatches(t *testing.T) {
	list := func(values ...any) []any { return values }
	for _, c := range []struct {
		name    string
		filters []Filter
		a       any // the value of the property
		want    bool
	}{
		{"no filter", nil, int64(1), true},
		{"equal", []Filter{where("a", "=", int64(5))}, int64(5), true},
		{"not equal", []Filter{where("a", "=", int64(5))}, int64(6), false},
		{"an integer is no fraction", []Filter{where("a", "=", int64(5))}, 5.0, false},
		{"below", []Filter{where("a", "<", int64(5))}, int64(4), true},
		{"not below", []Filter{where("a", "<", int64(5))}, int64(5), false},
		{"at most", []Filter{where("a", "<=", int64(5))}, int64(5), true},
		{"above", []Filter{where("a", ">", int64(5))}, int64(5), false},
		{"at least", []Filter{where("a", ">=", int64(5))}, int64(5), true},
		{"texts are above numbers", []Filter{where("a", ">", int64(5))}, "x", true},
		{"null is below all", []Filter{where("a", "<", int64(5))}, nil, true},
		{"one of some", []Filter{where("a", "in", list(int64(1), int64(5)))}, int64(5), true},
		{"none of some", []Filter{where("a", "in", list(int64(1), int64(5)))}, int64(2), false},
		{"another property", []Filter{where("b", "=", int64(1))}, int64(1), false},
		{"both", []Filter{where("a", ">", int64(1)), where("a", "<", int64(5))}, int64(3), true},
		{"one of both", []Filter{where("a", ">", int64(1)), where("a", "<", int64(5))}, int64(7), false},
		{"each equality by another element", []Filter{where("a", "=", int64(1)), where("a", "=", int64(2))},
			list(int64(1), int64(2)), true},
		{"both inequalities by one element", []Filter{where("a", ">", int64(1)), where("a", "<", int64(5))},
			list(int64(0), int64(3)), true},
		{"each inequality by another element", []Filter{where("a", ">", int64(4)), where("a", "<", int64(2))},
			list(int64(1), int64(5)), false},
		{"an empty array", []Filter{where("a", ">=", nil)}, list(), false},
	} {
		if got := (Query{Filters: c.filters}).Matches(entity(t, "a", c.a)); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// TestFilterNormal checks that filters which Datastore does not support are refused. The values of
// other filters must get the types that the Go client returns.
func TestFilterNormal(t *testing.T) {
	noon := time.Date(2026, 11, 1, 13, 0, 0, 1234, time.FixedZone("", 3600))
	long := strings.Repeat("x", keyspace.MaxName+1)
	many := make([]int, maxIn+1)
	for i := range many {
		many[i] = i
	}
	for _, c := range []struct {
		name string
		f    Filter
		want any    // the filter's value in the normal form
		err  string // or a part of the expected error
	}{
		{"an int", where("a", "=", 5), int64(5), ""},
		{"an int32", where("a", "=", int32(5)), int64(5), ""},
		{"a float32", where("a", "<", float32(0.5)), 0.5, ""},
		{"a time", where("a", ">", noon), noon.UTC().Truncate(time.Microsecond), ""},
		{"null", where("a", ">", nil), nil, ""},
		{"a nil key", where("a", "=", (*datastore.Key)(nil)), nil, ""},
		{"some, sorted and once each", where("a", "in", []int{3, 1, 3}), []any{int64(1), int64(3)}, ""},
		{"some texts", where("a", "in", []string{"b", "a"}), []any{"a", "b"}, ""},
		{"some of any type", where("a", "in", []any{"b", 1}), []any{int64(1), "b"}, ""},
		{"no name", where("", "=", 1), nil, "is empty"},
		{"a long name", where(long, "=", 1), nil, "longer than"},
		{"keys", where("__key__", ">", 1), nil, "Query.Start and Query.End"},
		{"a reserved name", where("__a__", "=", 1), nil, "reserved"},
		{"unequal", where("a", "!=", 1), nil, "filter in the function"},
		{"not in", where("a", "not-in", []int{1}), nil, "filter in the function"},
		{"no operator", where("a", "==", 1), nil, "one of =, <"},
		{"a long text", where("a", "=", long), nil, "longer than"},
		{"long bytes", where("a", "=", []byte(long)), nil, "longer than"},
		{"no text", where("a", "=", "\xff"), nil, "not UTF-8"},
		{"a time that is none", where("a", "=", time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)), nil, "years 1 to 9999"},
		{"an incomplete key", where("a", "=", datastore.IncompleteKey("K", nil)), nil, "incomplete"},
		{"a struct", where("a", "=", struct{}{}), nil, "which is not a bool"},
		{"in a single value", where("a", "in", 5), nil, "not a slice"},
		{"in nothing", where("a", "in", []int{}), nil, "0 values"},
		{"in too many", where("a", "in", many), nil, "31 values"},
		{"in a struct", where("a", "in", []any{struct{}{}}), nil, "which is not a bool"},
	} {
		got, err := c.f.normal()
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%s: %v, want %q", c.name, err, c.err)
		} else if err == nil && !reflect.DeepEqual(got.Value, c.want) {
			t.Errorf("%s: %#v, want %#v", c.name, got.Value, c.want)
		}
	}
}

// TestFilterJSON checks that filters which were encoded as JSON are decoded as the same filters,
// and that invalid JSON is refused.
func TestFilterJSON(t *testing.T) {
	for _, c := range []struct {
		f    Filter
		want string
	}{
		{where("a", "=", int64(5)), `{"property":"a","op":"=","value":5}`},
		{where("a", ">", nil), `{"property":"a","op":"\u003e","value":null}`},
		{where("a", "in", []any{int64(1), "b"}), `{"property":"a","op":"in","value":[1,"b"]}`},
		{Filter{"a", "=", "x", true}, `{"property":"a","op":"=","value":"x","any_type":true}`},
	} {
		text, err := json.Marshal(c.f)
		var read Filter
		if err == nil {
			err = json.Unmarshal(text, &read)
		}
		if err != nil || string(text) != c.want || !reflect.DeepEqual(read, c.f) {
			t.Errorf("%+v is %s, and read as %+v, %v", c.f, text, read, err)
		}
	}
	for _, text := range []string{`[]`, `{"property":"a","op":"=","value":1,"more":2}`, `{"property":"a","op":"="}`,
		`{"property":"a","op":"in","value":5}`, `{"property":"a","op":"!=","value":5}`,
		`{"property":"a","op":"=","value":{"what":1}}`} {
		if err := json.Unmarshal([]byte(text), new(Filter)); err == nil {
			t.Errorf("%s is read", text)
		}
	}
	if _, err := json.Marshal(where("a", "!=", 5)); err == nil {
		t.Error("a filter that can't be served is recorded")
	}
}
