package function

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// Rehearsal returns a mapper that rehearses d, which changes entities. It runs the same function,
// but counts the function's writes instead of making them.
//
// A rehearsal is a separate mapper with its own name. So a job stays a rehearsal even in a build
// that does not know rehearsals. The argument attempts is the default number of attempts on an
// entity.
func (d *Definition) Rehearsal(attempts int64) *Definition {
	r := *d
	r.Name, r.Mode = record.RehearsalPrefix+d.Name, Rehearse
	r.OnDone, r.Forget, r.PreparePage, r.ByName = nil, nil, nil, nil // a job starts by the original mapper's name
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
			return e, e.rehearse(key, stored)
		}, nil
	}
	if d.PrepareBatch == nil {
		return &r
	}
	r.PrepareBatch = func(params json.RawMessage, keysOnly bool) (BatchFunc, error) {
		call, err := d.PrepareBatch(params, keysOnly)
		if err != nil {
			return nil, err
		}
		return func(ctx context.Context, batch []Subject) ([]Answer, error) {
			for i := range batch {
				batch[i].Job.Rehearses = true
			}
			answers, err := call(ctx, batch)
			for i, s := range batch[:len(answers)] {
				if a := &answers[i]; a.Effect != nil {
					a.Err = a.Effect.rehearse(s.Key, s.Stored)
				}
			}
			return answers, err
		}, nil
	}
	return &r
}

// rehearse replaces the effect's writes by counters. It adds 1 to a counter for each kind of write,
// and for each changed property.
func (e *Effect) rehearse(key *datastore.Key, stored *pb.Entity) error {
	e.Example = func() []record.Example { return e.examples(key, stored) }
	for _, m := range e.Mutations {
		own, what := m.Key.Equal(key), "put another entity"
		switch {
		case own && m.Deletes:
			what = "delete"
		case own:
			what = "change"
			for _, name := range m.Edit.Changed {
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

// examples returns examples of the writes that the effect would make for an entity, for people to
// look at.
func (e *Effect) examples(key *datastore.Key, stored *pb.Entity) (all []record.Example) {
	for _, m := range e.Mutations {
		own, x := m.Key.Equal(key), record.Example{Key: m.Key, What: "put another entity"}
		before, after, names := map[string]string{}, texts(m.puts()), m.Edit.Changed
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

// Limits of an example: the number of properties, and the bytes of the text of a value.
const exampleProperties, exampleText = 20, 200

// texts returns the values of properties as texts for people, by property name.
func texts(properties []datastore.Property) map[string]string {
	all := make(map[string]string)
	for _, p := range properties {
		all[p.Name] = value.Short(value.Text(p.Value), exampleText)
	}
	return all
}

// would adds 1 to the counter for a kind of write that the real job would make. [tally.Would] makes
// the counter's name.
func (e *Effect) would(what string) error {
	name := tally.Would(what)
	if err := tally.CheckName(name); err != nil {
		return fmt.Errorf("rehearse: %w", err)
	}
	e.Counters.Add(name, 1)
	return nil
}
