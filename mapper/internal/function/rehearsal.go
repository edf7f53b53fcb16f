package function

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// rehearsalPrefix begins the names of rehearsals, and of no mapper of users.
const rehearsalPrefix = "rehearsal:"

// IsRehearsal reports whether a mapper of that name is a rehearsal.
func IsRehearsal(name string) bool { return strings.HasPrefix(name, rehearsalPrefix) }

// Rehearsal returns the mapper that rehearses one which changes entities: it runs the function, and
// counts what would be written in place of writing that. It is a mapper of its own, with a name of
// its own: so a job that is a rehearsal is one for good, also for a build that knows of no
// rehearsals. Attempts is how often such a function is tried by default.
func (d *Definition) Rehearsal(attempts int64) *Definition {
	r := *d
	r.Name, r.Mode = rehearsalPrefix+d.Name, Visit                   // nothing of what a visit asks for is written
	r.OnDone, r.Forget, r.PreparePage, r.ByName = nil, nil, nil, nil // it is started by the name of the mapper
	r.Backoff.Attempts = cmp.Or(d.Backoff.Attempts, attempts)
	r.Prepare = func(params json.RawMessage, keysOnly bool) (Func, error) {
		call, err := d.Prepare(params, keysOnly)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, j Job, key *datastore.Key, stored *pb.Entity) (*Effect, error) {
			j.Rehearses = true
			e, err := call(ctx, j, key, stored)
			if err != nil {
				return nil, err
			}
			e.Example = func() []record.Example { return e.examples(key, stored) }
			return e, e.rehearse(key)
		}, nil
	}
	return &r
}

// rehearse counts what would be written for an entity.
func (e *Effect) rehearse(key *datastore.Key) error {
	for _, m := range e.Mutations {
		own, what := m.Key.Equal(key), "put another entity"
		switch {
		case own && m.Deletes:
			what = "delete"
		case own:
			what = "change"
			for _, name := range m.Changed {
				if err := e.would("change " + name); err != nil {
					return err
				}
			}
		case m.Deletes:
			what = "delete another entity"
		}
		if err := e.would(what); err != nil {
			return err
		}
	}
	return nil
}

// examples returns what would be done for an entity with some properties.
func (e *Effect) examples(key *datastore.Key, stored *pb.Entity) (all []record.Example) {
	for _, m := range e.Mutations {
		own, x := m.Key.Equal(key), record.Example{Key: m.Key, What: "put another entity"}
		before, after, names := map[string]string{}, texts(m.puts()), m.Changed
		if own {
			before = texts(pbvalue.Properties(stored))
		}
		switch {
		case own && m.Deletes:
			x.What, names = "delete", slices.Sorted(maps.Keys(before))
		case own:
			x.What = "change"
		case m.Deletes:
			x.What = "delete another entity"
		default:
			names = slices.Sorted(maps.Keys(after))
		}
		for _, name := range names[:min(len(names), exampleProperties)] {
			x.Properties = append(x.Properties, record.ExampleProperty{Name: name, Before: before[name],
				After: after[name]})
		}
		all = append(all, x)
	}
	return all
}

// Bounds of examples: properties, and bytes of the text of a value.
const exampleProperties, exampleText = 20, 200

// texts returns the values of properties for people, by their names.
func texts(properties []datastore.Property) map[string]string {
	all := make(map[string]string)
	for _, p := range properties {
		all[p.Name] = value.Short(value.Text(p.Value), exampleText)
	}
	return all
}

// would counts something that would be done. A name that is too long for a counter is cut off.
func (e *Effect) would(what string) error {
	name := tally.Would(what)
	if err := tally.CheckName(name); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	e.Counters.Add(name, 1)
	return nil
}
