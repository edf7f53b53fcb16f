package function

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

var (
	self   = datastore.NameKey("K", "self", nil)
	other  = datastore.NameKey("K", "other", nil)
	absent = datastore.NameKey("K", "absent", nil)
	anyKey = datastore.IncompleteKey("K", nil)
)

type thing struct{ N int }

// storedThing returns a thing as a stored entity.
func storedThing(key *datastore.Key, n int64) *pb.Entity {
	return &pb.Entity{Key: pbvalue.Key(key), Properties: map[string]*pb.Value{
		"N": {ValueType: &pb.Value_IntegerValue{IntegerValue: n}}}}
}

// someOthers returns the other entities that a test's function reads. The entity "other" exists,
// "absent" does not, and the function over an earlier entity of the page has put "mate".
type someOthers struct{ err error }

func (o someOthers) Known(key *datastore.Key) (Seen, bool) {
	switch key.Name {
	case "other":
		return Seen{Key: key, Stamp: wire.Stamp{Version: 1, Entity: storedThing(key, 1)}}, true
	case "mate":
		return Seen{Key: key, Stamp: wire.Stamp{Entity: storedThing(key, 2)}, OfPage: true}, true
	case "absent":
		return Seen{Key: key, Stamp: wire.Stamp{Gone: true}}, true
	}
	return Seen{}, false
}

func (o someOthers) Look(_ context.Context, keys []*datastore.Key) (all []Seen, err error) {
	for _, key := range keys {
		s, known := o.Known(key)
		if !known {
			s = Seen{Key: key, Stamp: wire.Stamp{Gone: true}}
		}
		all = append(all, s)
	}
	return all, o.err
}

// asks lists the mutations of an effect: the kind and the target of each.
func asks(e *Effect) string {
	var all []string
	for _, m := range e.Mutations {
		what := "put"
		switch {
		case m.Deletes:
			what = "delete"
		case m.Inserts:
			what = "insert"
		}
		name := m.Key.Name
		if m.Key.Incomplete() {
			name = "a new one"
		}
		all = append(all, what+" "+name)
	}
	return strings.Join(all, ", ")
}

// TestAsks checks the mutations that result from calls of an attempt's methods. The attempt's own
// entity is "self".
func TestAsks(t *testing.T) {
	for _, c := range []struct {
		name  string
		mode  Mode
		fn    func(a *Attempt)
		want  string // the mutations of its effect
		wrong string // part of the error; empty: there is no error
	}{
		{name: "nothing", fn: func(*Attempt) {}},
		{name: "another entity", fn: func(a *Attempt) { a.Put(other, &thing{1}) }, want: "put other"},
		{name: "two, in their order", fn: func(a *Attempt) { a.Put(other, &thing{1}); a.Delete(absent) },
			want: "put other, delete absent"},
		{name: "the last of two counts", fn: func(a *Attempt) { a.Put(other, &thing{1}); a.Delete(other) },
			want: "delete other"},
		{name: "it takes the place of the first", fn: func(a *Attempt) {
			a.Put(other, &thing{1})
			a.Delete(absent)
			a.Put(other, &thing{2})
		}, want: "put other, delete absent"},
		{name: "new entities", fn: func(a *Attempt) { a.Put(anyKey, &thing{1}); a.Put(anyKey, &thing{2}) },
			want: "put a new one, put a new one"},
		{name: "an insert", fn: func(a *Attempt) { a.Insert(absent, &thing{1}) }, want: "insert absent"},
		{name: "a put over an insert is one", fn: func(a *Attempt) {
			a.Insert(absent, &thing{1})
			a.Put(absent, &thing{2})
		}, want: "insert absent"},
		{name: "an insert of what nobody knows", fn: func(a *Attempt) {
			a.Insert(datastore.NameKey("K", "unknown", nil), &thing{1})
		}, want: "insert unknown"},
		{name: "an insert of what is there", fn: func(a *Attempt) { a.Insert(other, &thing{1}) },
			wrong: "inserts /K,other, which is there"},
		{name: "an insert of what the page has put", fn: func(a *Attempt) {
			a.Insert(datastore.NameKey("K", "mate", nil), &thing{1})
		}, wrong: "an entity before it, of the same page, has put it"},
		{name: "an insert of no key", fn: func(a *Attempt) { a.Insert(anyKey, &thing{1}) }, wrong: "is incomplete"},
		{name: "an insert of itself", fn: func(a *Attempt) { a.Insert(self, &thing{1}) }, wrong: "which is there"},
		{name: "what it inserts is deleted", fn: func(a *Attempt) { a.Insert(absent, &thing{1}); a.Delete(absent) },
			want: "insert absent", wrong: "which the function inserts"},
		{name: "a put of itself", fn: func(a *Attempt) { a.Put(self, &thing{1}) }, wrong: "change its Value"},
		{name: "a put of no struct", fn: func(a *Attempt) { a.Put(other, 7) }, wrong: "Put: "},
		{name: "a put without a key", fn: func(a *Attempt) { a.Put(nil, &thing{1}) }, wrong: "Put: "},
		{name: "it is deleted", fn: func(a *Attempt) { a.Delete(self) }, want: "delete self"},
		{name: "nothing is deleted", fn: func(a *Attempt) { a.Delete(nil) }, wrong: "Delete: "},
		{name: "a new one is deleted", fn: func(a *Attempt) { a.Delete(anyKey) }, wrong: "incomplete"},
		{name: "as it is stored", fn: func(a *Attempt) { a.PutStored(other, storedThing(other, 3)) },
			want: "put other"},
		{name: "an insert as it is stored", fn: func(a *Attempt) { a.InsertStored(absent, storedThing(absent, 3)) },
			want: "insert absent"},
		{name: "what was not read is put", fn: func(a *Attempt) { a.PutStored(other, nil) }, wrong: "KeysOnly"},
		{name: "as it is stored, without a key", fn: func(a *Attempt) { a.PutStored(anyKey, storedThing(other, 3)) },
			wrong: "incomplete"},
		{name: "touched", fn: func(a *Attempt) { a.Touch(); a.Resave() }},
		{name: "a visit puts", mode: Visit, fn: func(a *Attempt) { a.Put(other, &thing{1}) }, wrong: "Put is for"},
		{name: "a visit deletes", mode: Visit, fn: func(a *Attempt) { a.Delete(other) }, wrong: "Delete is for"},
		{name: "a visit touches", mode: Visit, fn: func(a *Attempt) { a.Touch() }, wrong: "Touch is for"},
		{name: "a visit resaves", mode: Visit, fn: func(a *Attempt) { a.Resave() }, wrong: "Resave is for"},
		{name: "the first mistake is the error", fn: func(a *Attempt) { a.Count("", 1); a.Delete(nil) },
			wrong: "name"},
		{name: "more than a commit has room for", fn: func(a *Attempt) {
			for i := range 10 {
				a.Put(datastore.IDKey("K", int64(i+1), nil), &struct {
					B []byte `datastore:",noindex"`
				}{make([]byte, 1_000_000)})
			}
		}, wrong: "bytes for one entity"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAttempt(record.Ref{ID: "j"}, c.mode, self)
			a.Among(someOthers{})
			err := a.Run(func() error { c.fn(a); return nil })
			e, tooMuch := a.Effect()
			err = errors.Join(err, tooMuch)
			switch {
			case c.wrong == "" && err != nil:
				t.Fatal(err)
			case c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)):
				t.Fatalf("%v, want an error with %q", err, c.wrong)
			case c.wrong != "" && !fault.IsPermanent(err):
				t.Errorf("%v: it would be tried again", err)
			}
			if e != nil && asks(e) != c.want {
				t.Errorf("its effect: %q, want %q", asks(e), c.want)
			}
		})
	}
}

// TestTold checks what a function can report besides mutations: counters, collected values and
// errors.
func TestTold(t *testing.T) {
	a := NewAttempt(record.Ref{ID: "j"}, Update, self)
	err := a.Run(func() error {
		a.Count("seen", 2)
		a.Count("seen", 3)
		a.Min("size", 5)
		a.Min("size", 4)
		a.Max("size", 5)
		a.Max("size", 9)
		a.Collect("a")
		a.Collect("b")
		a.Delete(self)
		a.Touch()
		a.Resave()
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if !a.Deleted || !a.Touched || !a.Resaved {
		t.Errorf("deleted %v, touched %v, resaved %v", a.Deleted, a.Touched, a.Resaved)
	}
	e, err := a.Effect()
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(e.Collected); got != "[a b]" {
		t.Errorf("collected %s", got)
	}
	a.Leave(other, "as it was changed")
	if len(e.Left) != 1 || e.Left[0].Key != other || e.Left[0].Why != "as it was changed" {
		t.Errorf("left %+v", e.Left)
	}
	if got := counted(e); got != "[max(size):9 min(size):4 seen:5]" {
		t.Errorf("counted %s", got)
	}
}

// TestSeconds checks that all attempts on an entity have the same idempotency key, and that other
// jobs and entities have other keys.
func TestSeconds(t *testing.T) {
	first := NewAttempt(record.Ref{ID: "j", Incarnation: "1"}, Visit, self)
	if again := NewAttempt(record.Ref{ID: "j", Incarnation: "1"}, Visit, self); again.Job() != first.Job() ||
		again.IdempotencyKey() != first.IdempotencyKey() {
		t.Error("a second attempt is another one")
	}
	if again := NewAttempt(record.Ref{ID: "j", Incarnation: "2"}, Visit, self); again.Job() == first.Job() ||
		again.IdempotencyKey() == first.IdempotencyKey() {
		t.Error("a job of the same ID is the same job")
	}
	if NewAttempt(record.Ref{ID: "j", Incarnation: "1"}, Visit, other).IdempotencyKey() == first.IdempotencyKey() {
		t.Error("two entities have one key")
	}
}

// TestGet checks the result of reads of other entities.
func TestGet(t *testing.T) {
	down := errors.New("down")
	for _, c := range []struct {
		name   string
		mode   Mode
		others Others
		keys   []*datastore.Key
		want   string // the missing entities, and the loaded values
		wrong  string
		again  bool // the error is temporary
	}{
		{name: "one is there, one is not", others: someOthers{}, keys: []*datastore.Key{absent, other},
			want: "[true false] map[1:1]"},
		{name: "none", others: someOthers{}, want: "[] map[]"},
		{name: "the database is down", others: someOthers{down}, keys: []*datastore.Key{other}, wrong: "down",
			again: true},
		{name: "a visit", mode: Visit, others: someOthers{}, keys: []*datastore.Key{other}, wrong: "Get is for"},
		{name: "there is no database", keys: []*datastore.Key{other}, wrong: "mappertest.Run"},
		{name: "no key", others: someOthers{}, keys: []*datastore.Key{other, nil}, wrong: "key 2"},
		{name: "an incomplete key", others: someOthers{}, keys: []*datastore.Key{anyKey}, wrong: "is incomplete"},
	} {
		t.Run(c.name, func(t *testing.T) {
			a := NewAttempt(record.Ref{ID: "j"}, c.mode, self)
			if c.others != nil {
				a.Among(c.others)
			}
			loaded := make(map[int]int64)
			missing, err := a.Get(t.Context(), c.keys, func(i int, e *pb.Entity) error {
				loaded[i] = e.Properties["N"].GetIntegerValue()
				return nil
			})
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) || fault.IsPermanent(err) == c.again {
					t.Errorf("%v, want an error with %q, which may pass: %v", err, c.wrong, c.again)
				}
				return
			}
			if got := fmt.Sprint(missing, loaded); err != nil || got != c.want {
				t.Errorf("%s, %v, want %s", got, err, c.want)
			}
			if e, _ := a.Effect(); len(e.Seen) != len(c.keys) {
				t.Errorf("%d of %d are guarded", len(e.Seen), len(c.keys))
			}
		})
	}
}

// TestOver checks that calls after the function has returned do not change the attempt.
func TestOver(t *testing.T) {
	a := NewAttempt(record.Ref{ID: "j"}, Update, self)
	a.Among(someOthers{})
	if err := a.Run(func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	var err error
	func() {
		defer Recovered(&err)
		a.Put(other, &thing{1})
	}()
	if err == nil || !strings.Contains(err.Error(), "used after its function had returned") {
		t.Errorf("%v", err)
	}
	if e, _ := a.Effect(); len(e.Mutations) > 0 {
		t.Errorf("it still puts: %s", asks(e))
	}
	late := NewAttempt(record.Ref{ID: "j"}, Update, self)
	late.Among(someOthers{})
	_, err = late.Get(t.Context(), []*datastore.Key{other}, func(int, *pb.Entity) error {
		return late.Run(func() error { return nil }) // the function returns during its Get
	})
	if e, _ := late.Effect(); err == nil || len(e.Seen) > 0 {
		t.Errorf("a Get that nobody has waited for: %v, %d guarded", err, len(e.Seen))
	}
}

// TestFails checks that an error which the function returns wins over the error of an invalid call,
// and that a panic becomes an error.
func TestFails(t *testing.T) {
	bad := errors.New("bad")
	a := NewAttempt(record.Ref{ID: "j"}, Update, self)
	if err := a.Run(func() error { a.Delete(nil); return bad }); !errors.Is(err, bad) || fault.IsPermanent(err) {
		t.Errorf("%v, want what the function returns", err)
	}
	a = NewAttempt(record.Ref{ID: "j"}, Visit, self)
	if err := a.Run(func() error { return a.AwaitCalls(t.Context(), -1) }); !fault.IsPermanent(err) {
		t.Errorf("%v, want an error that is not tried again", err)
	}
	run := func() (err error) {
		defer Recovered(&err)
		return NewAttempt(record.Ref{ID: "j"}, Update, self).Run(func() error { panic("ouch") })
	}
	err := run()
	if err == nil || !strings.HasPrefix(err.Error(), "panic: ouch\n") ||
		!strings.Contains(err.Error(), "attempt_test.go") {
		t.Errorf("%v, want the panic and where it was", err)
	}
	if fault.IsPermanent(err) {
		t.Error("a panic is not tried again")
	}
	if panicked([]byte("no stack")) != "" || panicked([]byte("x\npanic(1)\n\tfile")) != "" {
		t.Error("where a panic was that nobody knows")
	}
}

// TestLose checks that the functions added by OnLost run in reverse order.
func TestLose(t *testing.T) {
	a := NewAttempt(record.Ref{ID: "j"}, Update, self)
	var undone []string
	for _, what := range []string{"first", "second"} {
		a.OnLost(func(context.Context) { undone = append(undone, what) })
	}
	if len(undone) > 0 {
		t.Error("it is lost before anybody says so")
	}
	if a.Lose(t.Context()); fmt.Sprint(undone) != "[second first]" {
		t.Errorf("undone: %v", undone)
	}
}

// TestSave checks which properties of the attempt's own entity are saved.
func TestSave(t *testing.T) {
	whole := storedThing(self, 1)
	whole.Properties["M"] = storedThing(self, 2).Properties["N"]
	for _, c := range []struct {
		name    string
		changed []string
		masks   bool
		want    int // number of properties sent
		named   int // number of properties in the mask
	}{
		{"what has changed", []string{"N"}, true, 1, 1},
		{"what has gone is named, and not sent", []string{"Gone", "N"}, true, 1, 2},
		{"nothing has changed", nil, true, 2, 0},
		{"the database has no masks", []string{"N"}, false, 2, 0},
		{"a mask can't name it", []string{"a.b"}, true, 2, 0},
	} {
		a := NewAttempt(record.Ref{ID: "j"}, Update, self)
		edits := make(map[string]*pb.Value)
		for _, name := range c.changed {
			edits[name] = whole.Properties[name]
		}
		a.Save(property.NewEdit(whole, edits), c.masks)
		e, err := a.Effect()
		if err != nil || len(e.Mutations) != 1 {
			t.Fatalf("%s: %d mutations, %v", c.name, len(e.Mutations), err)
		}
		m := e.Mutations[0]
		if got := len(m.On.Writes.Properties); got != c.want || !m.On.Free {
			t.Errorf("%s: %d properties, want %d; on %+v", c.name, got, c.want, m.On)
		}
		if after, err := m.After(); err != nil || !proto.Equal(after.Entity, whole) {
			t.Errorf("%s: after it, the entity is %v, %v", c.name, after.Entity, err)
		}
		if got := m.On.Mask.GetPaths(); len(got) != c.named || len(got) > 0 && !slices.Equal(got, c.changed) {
			t.Errorf("%s: the mask names %v, want %d", c.name, got, c.named)
		}
	}
}

// TestRestore checks the mutations by which an undo restores entities. They must fail if the entity
// has changed since.
func TestRestore(t *testing.T) {
	image := storedThing(other, 1)
	for _, c := range []struct {
		name    string
		image   *pb.Entity
		version int64
		deletes bool
	}{
		{"it becomes what it was", image, 3, false},
		{"it is not there, and becomes what it was", image, 0, false},
		{"it was not there", nil, 3, true},
	} {
		a := NewAttempt(record.Ref{ID: "j"}, Update, self)
		a.Restore(other, c.image, c.version)
		e, _ := a.Effect()
		m := e.Mutations[0]
		if m.Deletes != c.deletes || m.On.Version != c.version || m.On.Writes != c.image || m.On.Free {
			t.Errorf("%s: %+v", c.name, m)
		}
		if deletes := m.Wire().Deletes != nil; deletes != c.deletes {
			t.Errorf("%s: the commit deletes it: %v", c.name, deletes)
		}
	}
}
