package query

import (
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
)

// A Comparison holds all filters of a query on one property, to check the types of their values.
// Datastore also compares values of different types, by an order of types. A user hardly ever wants
// this.
type Comparison struct {
	Property string
	filters  []Filter
	kind     string
	space    Query
}

// Comparisons returns the comparisons of the query whose types should be checked, one for each
// property. It leaves out comparisons only with null, because they are often intended, and
// comparisons with AllowAnyType. The query must be over one kind and namespace.
func (q Query) Comparisons() (all []Comparison) {
	for _, f := range q.Filters {
		if slices.ContainsFunc(all, func(c Comparison) bool { return c.Property == f.Property }) {
			continue
		}
		c := Comparison{Property: f.Property, kind: q.Kind, space: Query{Kind: q.Kind, Namespace: q.Namespace}}
		typed := false
		for _, f := range q.Filters {
			if f.Property == c.Property {
				c.filters = append(c.filters, f)
				typed = typed || f.Value != nil
			}
		}
		if typed && !slices.ContainsFunc(c.filters, func(f Filter) bool { return f.AllowAnyType }) {
			all = append(all, c)
		}
	}
	return all
}

// AnySharded returns a Datastore query for the key of one entity, no matter which, that has the
// property in ShardBy. The query q must be over one kind in one namespace.
func (q Query) AnySharded() *datastore.Query {
	return Query{Kind: q.Kind, Namespace: q.Namespace}.Base().Order(names.Field(q.ShardBy)).KeysOnly().Limit(1)
}

// Ranges reports whether all filters of the comparison are inequalities.
func (c Comparison) Ranges() bool {
	return !slices.ContainsFunc(c.filters, func(f Filter) bool { return !f.ranges() })
}

// Passing returns the Datastore query for one entity that satisfies the comparison. It finds the
// entity with the greatest value if greatest is set, and otherwise with the least.
func (c Comparison) Passing(greatest bool) *datastore.Query {
	d := c.ordered(greatest)
	for _, f := range c.filters {
		d = d.FilterField(names.Field(f.Property), f.Op, f.Value)
	}
	return d
}

// Stored returns the Datastore query for one entity whose value of the property is not null. It
// finds the entity with the greatest value if greatest is set, and otherwise with the least.
func (c Comparison) Stored(greatest bool) *datastore.Query {
	return c.ordered(greatest).FilterField(names.Field(c.Property), ">", nil)
}

// Null returns the Datastore query for one entity whose value of the property is null.
func (c Comparison) Null() *datastore.Query {
	return c.space.Base().FilterField(names.Field(c.Property), "=", nil).Limit(1)
}

func (c Comparison) ordered(descending bool) *datastore.Query {
	order := names.Field(c.Property)
	if descending {
		order = "-" + order
	}
	return c.space.Base().Order(order).Limit(1)
}

// ValueOf returns the value by which [Comparison.Passing] (if passes is set) or [Comparison.Stored]
// has found the entity e. It is the least value of the property, or the greatest if greatest is
// set. With passes, only values that satisfy the comparison count, and otherwise all except null.
// The bool is false if there is no such value.
func (c Comparison) ValueOf(e *pb.Entity, passes, greatest bool) (any, bool) {
	values := slices.DeleteFunc(property.Indexed(e, c.Property), func(v any) bool {
		return passes && slices.ContainsFunc(c.filters, func(f Filter) bool { return !f.holds(v) }) || !passes &&
			v == nil
	})
	slices.SortFunc(values, value.Compare)
	switch {
	case len(values) == 0:
		return nil, false
	case greatest:
		return values[len(values)-1], true
	}
	return values[0], true
}

// CheckPassing returns an error if the stored value passing, which satisfies the comparison, has
// another type than the values in the query.
func (c Comparison) CheckPassing(passing any) error {
	for _, f := range c.filters {
		if f.Value == nil || value.Type(f.Value) == value.Type(passing) {
			continue
		}
		if passing == nil {
			return setting.Errorf("%w: Query.Filters: %q %s lets null pass as well, as Datastore orders it before all "+
				"else, and entities of the kind %q have it: leave that out by the filter %s > null, or say by "+
				"Filter.AllowAnyType that it is meant", fault.ErrArguments, f.Property, f.Op, c.kind, f.Property)
		}
		return c.mismatch(f, f.Value, passing)
	}
	return nil
}

// CheckStored returns an error if the query compares the property with a value of a type that no
// stored value of the property has. Datastore sorts values by type. So it is enough to know the
// least and the greatest stored value.
func (c Comparison) CheckStored(least, greatest any) error {
	for _, f := range c.filters {
		values, list := f.Value.([]any)
		if !list {
			values = []any{f.Value}
		}
		for _, v := range values {
			rank := value.Rank(v)
			if v == nil || value.Type(v) == value.Type(least) || value.Type(v) == value.Type(greatest) ||
				value.Rank(least) < rank && rank < value.Rank(greatest) {
				continue
			}
			return c.mismatch(f, v, least)
		}
	}
	return nil
}

func (c Comparison) mismatch(f Filter, compared, stored any) error {
	return setting.Errorf("%w: Query.Filters: %q %s compares with a value of the type %s, and entities of the kind %q "+
		"have values of the type %s, which Datastore orders by their type alone%s; "+
		"Filter.AllowAnyType says that it is meant", fault.ErrArguments, f.Property, f.Op,
		value.Type(compared), c.kind, value.Type(stored), advice(compared, stored))
}

// advice returns a text that says how to write a value of the type of stored in GQL and in JSON.
func advice(compared, stored any) string {
	gql, form := "", ""
	switch stored.(type) {
	case time.Time:
		at := "2026-10-24T00:00:00Z"
		if s, ok := compared.(string); ok {
			if _, err := time.Parse(time.RFC3339, s); err == nil {
				at = s
			}
		}
		gql, form = fmt.Sprintf("DATETIME('%s')", at), fmt.Sprintf(`{"time": %q}`, at)
	case float64:
		gql, form = "5.0", `5.0 or {"float": 5}`
	case int64:
		gql, form = "5", "5"
	case *datastore.Key:
		gql, form = "KEY(Kind, 'name')", `{"key": "…"} with the text of Key.Encode`
	case []byte:
		gql, form = "BLOB('…')", `{"bytes": "…"} in base64`
	case string:
		gql, form = "'text'", `"text"`
	case bool:
		gql, form = "TRUE", "true"
	}
	if form == "" {
		return ""
	}
	return fmt.Sprintf(": such a value is %s in GQL, and %s in JSON", gql, form)
}
