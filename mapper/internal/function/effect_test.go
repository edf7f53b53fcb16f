package function

import (
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// counted returns the counters of an effect as text.
func counted(e *Effect) string {
	values, err := e.Counters.Values()
	if err != nil {
		return err.Error()
	}
	return strings.TrimPrefix(fmt.Sprint(values), "map")
}

// TestAfter checks the state of an entity after a mutation. Functions over later entities of the
// page see this state.
func TestAfter(t *testing.T) {
	for _, c := range []struct {
		name string
		fn   func(a *Attempt)
		gone bool
		n    int64
	}{
		{"put", func(a *Attempt) { a.Put(other, &thing{5}) }, false, 5},
		{"put as it is stored", func(a *Attempt) { a.PutStored(other, storedThing(other, 6)) }, false, 6},
		{"saved", func(a *Attempt) { a.Save(property.NewEdit(storedThing(self, 7), nil), true) }, false, 7},
		{"deleted", func(a *Attempt) { a.Delete(other) }, true, 0},
	} {
		a := NewAttempt(record.Ref{ID: "j"}, Update, self)
		if err := a.Run(func() error { c.fn(a); return nil }); err != nil {
			t.Fatal(err)
		}
		e, _ := a.Effect()
		after, err := e.Mutations[0].After()
		if err != nil || after.Gone != c.gone || after.Entity.GetProperties()["N"].GetIntegerValue() != c.n {
			t.Errorf("%s: %+v, %v, want %d", c.name, after, err, c.n)
		}
	}
}

// TestIncomplete checks that puts with incomplete keys are taken out of an effect, and get complete
// keys.
func TestIncomplete(t *testing.T) {
	a := NewAttempt(record.Ref{ID: "j"}, Update, self)
	a.Put(anyKey, &thing{1})
	a.Put(other, &thing{2})
	a.Put(anyKey, &thing{3})
	e, _ := a.Effect()
	incomplete := e.Incomplete()
	if asks(e) != "put other" || asks(&incomplete) != "put a new one, put a new one" {
		t.Fatalf("%q and %q", asks(e), asks(&incomplete))
	}
	if len(incomplete.Keys()) != 2 || !incomplete.Keys()[0].Incomplete() {
		t.Errorf("keys %v", incomplete.Keys())
	}
	incomplete.Complete([]*datastore.Key{datastore.NameKey("K", "a", nil), datastore.NameKey("K", "b", nil)})
	if asks(&incomplete) != "put a, put b" {
		t.Errorf("%q", asks(&incomplete))
	}
	if after, err := incomplete.Mutations[1].After(); err != nil ||
		after.Entity.Properties["N"].GetIntegerValue() != 3 {
		t.Errorf("b becomes %v, %v", after.Entity, err)
	}
	if none := e.Incomplete(); len(none.Mutations) > 0 || asks(e) != "put other" {
		t.Errorf("%q of an effect without new entities", asks(&none))
	}
}
