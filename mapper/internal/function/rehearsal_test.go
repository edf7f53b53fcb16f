package function

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestRehearsal checks which writes a rehearsal counts. The function runs on the entity "self",
// whose N is 1.
func TestRehearsal(t *testing.T) {
	bad := errors.New("bad")
	for _, c := range []struct {
		name     string
		fn       func(a *Attempt) error
		counted  string
		examples []string
		err      error
	}{
		{name: "nothing", fn: func(*Attempt) error { return nil }, counted: "[]"},
		{
			name: "a change", fn: func(a *Attempt) error {
				a.Save(property.NewEdit(storedThing(self, 2), storedThing(self, 2).Properties), true)
				return nil
			},
			counted: "[would(change N):1 would(change):1]", examples: []string{"change self [N: 1 -> 2]"},
		},
		{
			name: "a deletion", fn: func(a *Attempt) error { a.Delete(self); return nil },
			counted: "[would(delete):1]", examples: []string{"delete self [N: 1 -> ]"},
		},
		{
			name: "others", fn: func(a *Attempt) error { a.Put(other, &thing{5}); a.Delete(absent); return nil },
			counted:  "[would(delete another entity):1 would(put another entity):1]",
			examples: []string{"put another entity other [N:  -> 5]", "delete another entity absent []"},
		},
		{name: "a failure", fn: func(*Attempt) error { return bad }, err: bad},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := Definition{Name: "m", Mode: Update, ByName: 1, Prepare: func(json.RawMessage, bool) (Func, error) {
				return func(_ context.Context, j Job, key *datastore.Key, _ *pb.Entity) (*Effect, error) {
					if !j.Rehearses {
						t.Error("the function is not told that it rehearses")
					}
					a := NewAttempt(j.Ref, Update, key)
					if err := a.Run(func() error { return c.fn(a) }); err != nil {
						return nil, err
					}
					return a.Effect()
				}, nil
			}}
			r := d.Rehearsal(3)
			if !record.IsRehearsal(r.Name) || record.IsRehearsal(d.Name) || r.Mode != Rehearse || r.ByName != nil ||
				r.Backoff.Attempts != 3 {
				t.Errorf("%+v", r)
			}
			call, err := r.Prepare(nil, false)
			if err != nil {
				t.Fatal(err)
			}
			e, err := call(t.Context(), Job{Ref: record.Ref{ID: "j"}}, self, storedThing(self, 1))
			if !errors.Is(err, c.err) || c.err != nil {
				if !errors.Is(err, c.err) {
					t.Errorf("%v, want %v", err, c.err)
				}
				return
			}
			if got := counted(e); got != c.counted {
				t.Errorf("counted %q, want %q", got, c.counted)
			}
			var all []string
			for _, x := range e.Example() {
				var changes []string
				for _, p := range x.Properties {
					changes = append(changes, fmt.Sprintf("%s: %s -> %s", p.Name, p.Before, p.After))
				}
				all = append(all, fmt.Sprintf("%s %s %v", x.What, x.Key.Name, changes))
			}
			if got, want := strings.Join(all, "\n"), strings.Join(c.examples, "\n"); got != want {
				t.Errorf("examples\n%s\nwant\n%s", got, want)
			}
		})
	}
	unprepared := Definition{Prepare: func(json.RawMessage, bool) (Func, error) { return nil, bad }}
	if _, err := unprepared.Rehearsal(1).Prepare(nil, false); !errors.Is(err, bad) {
		t.Errorf("%v, want %v", err, bad)
	}
}
