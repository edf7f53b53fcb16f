package mapper_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestUnsendable has a function write what the client can't send, to its own entity and to another
// one: each entity is a failure that says so, and the job ends.
func TestUnsendable(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	prop := func(name string, v any) datastore.Property { return datastore.Property{Name: name, Value: v} }
	many := make(datastore.PropertyList, 20_001)
	for i := range many {
		many[i] = prop(fmt.Sprint("p", i), "x")
	}
	for name, c := range map[string]struct {
		list datastore.PropertyList
		want string
	}{
		"a name twice": {datastore.PropertyList{prop("a", "b"), prop("a", "c")}, `"a" is there twice`},
		"a name twice inside": {
			datastore.PropertyList{prop("a",
				&datastore.Entity{Properties: []datastore.Property{prop("b", 1), prop("b", 2)}})},
			`"b" is there twice`},
		"no type of a property": {datastore.PropertyList{prop("a", []string{"b"})}, "no property can have"},
		"no type inside": {datastore.PropertyList{prop("a", []any{"x", struct{}{}})},
			"no property can have"},
		"a text that is none":        {datastore.PropertyList{prop("a", "\xff")}, "not valid UTF-8"},
		"a text that is none inside": {datastore.PropertyList{prop("a", []any{"\xff"})}, "not valid UTF-8"},
		"a name that is no text":     {datastore.PropertyList{prop("a\xff", "x")}, "not valid UTF-8"},
		"a late time":                {datastore.PropertyList{prop("a", time.Unix(1e15, 0))}, "years 1 to 9999"},
		"too many indexed values":    {many, "at most 20000"},
		"a key that is no text": {datastore.PropertyList{prop("a", datastore.NameKey("K", "\xff", nil))},
			"not valid UTF-8"},
	} {
		for _, own := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				m := mapper.Update("unsendable",
					func(_ context.Context, e *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
						if own {
							e.Value = append(e.Value, c.list...)
						} else {
							e.Put(datastore.NameKey("Other", e.Key.Name, nil), &c.list)
						}
						return nil
					})
				w := newWorld(t, setting{}, m)
				w.putAccounts(names(2))
				job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(5 * time.Hour)
				failures, _, err := job.FailuresPage(t.Context(), "")
				if s := w.status(job); err != nil || s.State != mapper.StateSucceededWithFailures ||
					len(failures) != 2 ||
					!strings.Contains(failures[0].Error, c.want) {
					t.Errorf("%s, own: %v: the job is %q, its failures are %+v, %v; want %q", name, own, s.State,
						failures, err, c.want)
				}
			})
		}
	}
}

// TestUnsendableStored has a function write an entity in the protocol's form whose texts are none.
func TestUnsendableStored(t *testing.T) {
	t.Parallel()
	text := &datastorepb.Value{ValueType: &datastorepb.Value_StringValue{StringValue: "\xff"}}
	for name, properties := range map[string]map[string]*datastorepb.Value{"a value": {"a": text},
		"a name": {"\xff": {}}} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Update("stored", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
				e.PutStored(datastore.NameKey("Other", "x", nil), &datastorepb.Entity{Properties: properties})
				return nil
			})
			w := newWorld(t, setting{}, m)
			w.putAccounts(names(1))
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Hour)
			failures, _, err := job.FailuresPage(t.Context(), "")
			if err != nil || len(failures) != 1 || !strings.Contains(failures[0].Error, "not valid UTF-8") {
				t.Errorf("%s: failures %+v, %v", name, failures, err)
			}
		})
	}
}
