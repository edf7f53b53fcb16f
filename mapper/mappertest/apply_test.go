package mappertest_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type account struct {
	Balance int64
	Owner   string
}

type credit struct{ Amount int64 }

var addCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	switch {
	case a.Value.Balance < 0:
		return errors.New("overdrawn")
	case a.Value.Owner == "":
		a.Delete(a.Key)
		a.Delete(datastore.NameKey("Mailbox", a.Key.Name, nil))
		return nil
	}
	if p.Amount != 0 {
		a.Value.Balance += p.Amount
		a.Put(datastore.NameKey("Receipt", a.Key.Name, nil), &credit{p.Amount})
		a.Count("credited", 1)
	}
	return nil
})

// A positive is a type of parameters with a method Validate.
type positive struct{ N int }

func (p *positive) Validate() error {
	if p.N <= 0 {
		return errors.New("N has to be positive")
	}
	return nil
}

// TestApply checks that a result has the function's effects.
func TestApply(t *testing.T) {
	a := account{Balance: 5, Owner: "Ann"}
	r := mappertest.Apply(t, addCredit, &a, credit{10})
	if r.Err != nil || !r.Changed || r.Deleted || a.Balance != 15 || a.Owner != "Ann" || r.Counters["credited"] != 1 ||
		len(r.Puts) != 1 || r.Puts[0].Properties[0].Value != int64(10) {
		t.Errorf("%+v, %+v", r, a)
	}
	if r := mappertest.Apply(t, addCredit, &a, credit{}); r.Err != nil || r.Changed ||
		len(r.Puts)+len(r.Counters) > 0 ||
		a.Balance != 15 {
		t.Errorf("nothing to change: %+v, %+v", r, a)
	}
	if r := mappertest.Apply(t, addCredit, &account{Balance: 5}, credit{1}); !r.Deleted || r.Changed ||
		len(r.Deletes) != 1 {
		t.Errorf("deleted: %+v", r)
	}
	if r := mappertest.Apply(t, addCredit, &account{Balance: -5, Owner: "Ann"}, credit{1}); r.Err == nil || r.Changed {
		t.Errorf("an error: %+v", r)
	}
	// A stored entity that lacks a field is changed, even if the function changes nothing.
	type older struct{ Owner string }
	if r := mappertest.Apply(t, addCredit, &older{"Ann"}, credit{}); r.Err != nil || !r.Changed {
		t.Errorf("a new field: %+v", r)
	}
	skip := mapper.Update("skip", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance = 9
		a.Count("skipped", 1)
		return mapper.Skip
	})
	checked := mapper.Update("checked", func(context.Context, *mapper.Entity[account], positive) error { return nil })
	negative := mappertest.Apply(t, checked, &a, positive{-1})
	if negative.Err == nil || !strings.Contains(negative.Err.Error(), "positive") {
		t.Errorf("parameters that a start refuses: %+v", negative)
	}
	if r := mappertest.Apply(t, checked, &a, positive{1}); r.Err != nil {
		t.Errorf("parameters that a start takes: %+v", r)
	}
	if r := mappertest.Apply(t, skip, &a, mapper.NoParams{}); r.Err != nil || r.Changed || a.Balance != 15 ||
		r.Counters["skipped"] != 1 {
		t.Errorf("skipped: %+v, %+v", r, a)
	}
	// Properties that the mapper's type does not declare stay. A property that does not fit its
	// field is an error.
	list := datastore.PropertyList{{Name: "Balance", Value: int64(1)}, {Name: "Owner", Value: "Ann"},
		{Name: "Other", Value: "x"}}
	if r := mappertest.ApplyKey(t, addCredit, datastore.IDKey("Account", 7, nil), &list, credit{1}); r.Err != nil ||
		!strings.Contains(fmt.Sprint(list), "Other") {
		t.Errorf("%+v, %+v", r, list)
	}
	misfit := datastore.PropertyList{{Name: "Balance", Value: "much"}}
	if r := mappertest.Apply(t, addCredit, &misfit, credit{1}); r.Err == nil ||
		!strings.Contains(r.Err.Error(), "Balance") {
		t.Errorf("a misfit: %+v", r)
	}
}

// creditAll credits a batch of accounts. It fails on a batch with an account of "Bob".
var creditAll = mapper.UpdateBatches("credit-all", 4,
	func(_ context.Context, batch []*mapper.Entity[account], p credit) error {
		for _, a := range batch {
			switch {
			case a.Value.Owner == "Bob":
				return errors.New("no batch with Bob")
			case a.Value.Balance < 0:
				a.Fail(mapper.Permanent(errors.New("overdrawn")))
				a.Fail(nil)
			case a.Value.Balance == 0:
				a.Fail(mapper.Skip)
			}
			a.Value.Balance += p.Amount
			a.Put(datastore.NameKey("Receipt", a.Value.Owner, nil), &credit{p.Amount})
			a.Count("credited", 1)
		}
		return nil
	})

// TestApplyBatch checks the results of a batch, of an error that fails the whole batch, and of an
// error of one entity.
func TestApplyBatch(t *testing.T) {
	all := []*account{{5, "Ann"}, {-5, "Cid"}, {0, "Dan"}}
	r := mappertest.ApplyBatch(t.Context(), t, creditAll, all, credit{10})
	var got []string
	for i, r := range r {
		got = append(got, fmt.Sprintf("%v, changed %v, balance %d, %d puts, %d credited", r.Err, r.Changed,
			all[i].Balance, len(r.Puts), r.Counters["credited"]))
	}
	if diff := cmp.Diff([]string{
		"<nil>, changed true, balance 15, 1 puts, 1 credited",
		"overdrawn, changed false, balance -5, 0 puts, 0 credited",
		"<nil>, changed false, balance 0, 1 puts, 1 credited",
	}, got); diff != "" {
		t.Errorf("the results of a batch (-want +got):\n%s", diff)
	}
	all = []*account{{5, "Ann"}, {5, "Bob"}}
	for i, r := range mappertest.ApplyBatch(t.Context(), t, creditAll, all, credit{10}) {
		if r.Err == nil || r.Changed || all[i].Balance != 5 {
			t.Errorf("an error of the batch: %+v, %+v", r, all[i])
		}
	}
	a := account{5, "Ann"}
	if r := mappertest.Apply(t, creditAll, &a, credit{1}); r.Err != nil || !r.Changed || a.Balance != 6 {
		t.Errorf("one entity: %+v, %+v", r, a)
	}
	for _, m := range []*mapper.Mapper[credit]{addCredit, creditAll} {
		var f fakeT
		done := make(chan struct{})
		go func() {
			defer close(done)
			mappertest.ApplyBatch(t.Context(), &f, m, make5(), credit{})
		}()
		<-done
		if !strings.HasPrefix(f.fatal, "mappertest: a batch of 5") {
			t.Errorf("%s: %q", m.Name(), f.fatal)
		}
	}
}

func make5() (all []*account) {
	for range 5 {
		all = append(all, new(account))
	}
	return all
}

// TestPuts checks that a result has all puts in order, also with incomplete keys, and with keys
// that differ only in the namespace.
func TestPuts(t *testing.T) {
	foreign := datastore.NameKey("Receipt", "a", nil)
	foreign.Namespace = "n"
	keys := []*datastore.Key{
		datastore.IncompleteKey("Receipt", nil), datastore.NameKey("Receipt", "a", nil),
		datastore.IncompleteKey("Receipt", nil), foreign,
	}
	m := mapper.Update("puts", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		for i, k := range keys {
			a.Put(k, &credit{int64(i)})
		}
		return nil
	})
	var want []mappertest.Put
	for i, k := range keys {
		want = append(want,
			mappertest.Put{Key: k, Properties: datastore.PropertyList{{Name: "Amount", Value: int64(i)}}})
	}
	if diff := cmp.Diff(want, mappertest.Apply(t, m, &account{Owner: "Ann"}, mapper.NoParams{}).Puts); diff != "" {
		t.Errorf("puts (-want +got):\n%s", diff)
	}
}

// A basket has fields of all types for which loading differs.
type basket struct {
	Key   *datastore.Key `datastore:"__key__"`
	Items []string
	Note  string `datastore:",omitempty"`
	Photo []byte
	Lines []line
}

type line struct {
	Key *datastore.Key `datastore:"__key__"`
	N   int64
}

// A loader is a basket with its own Load, Save and LoadKey.
type loader struct{ basket }

func (l *loader) LoadKey(k *datastore.Key) error      { l.Key = k; return nil }
func (l *loader) Load(p []datastore.Property) error   { return datastore.LoadStruct(&l.basket, p) }
func (l *loader) Save() ([]datastore.Property, error) { return datastore.SaveStruct(&l.basket) }

// empty is a mapper that empties all fields of a basket except its lines.
var empty = mapper.Update("empty", func(_ context.Context, b *mapper.Entity[basket], _ mapper.NoParams) error {
	if !b.Key.Equal(b.Value.Key) {
		return fmt.Errorf("the field has the key %v, want %v", b.Value.Key, b.Key)
	}
	b.Value.Items, b.Value.Note, b.Value.Photo = b.Value.Items[:0], "", nil
	for i := range b.Value.Lines {
		b.Value.Lines[i].N++
	}
	return nil
})

func full(key *datastore.Key) basket {
	inner := datastore.NameKey("Line", "a", nil)
	return basket{Key: key, Items: []string{"a", "b"}, Note: "note", Photo: []byte("photo"),
		Lines: []line{{N: 1}, {Key: inner, N: 2}}}
}

// TestLoadedAnew checks that an entity has none of its old values after Apply, and that fields for
// keys are loaded.
func TestLoadedAnew(t *testing.T) {
	key := datastore.IDKey("Basket", 7, nil)
	want := full(key)
	want.Items, want.Note, want.Photo, want.Lines[0].N, want.Lines[1].N = nil, "", nil, 2, 3
	for _, before := range []*datastore.Key{nil, key, datastore.IncompleteKey("Basket", nil)} {
		b := full(before)
		if r := mappertest.ApplyKey(t, empty, key, &b, mapper.NoParams{}); r.Err != nil || !r.Changed {
			t.Errorf("key %v: %+v", before, r)
		}
		// Photo is saved as empty, and not as nil.
		if b.Photo = append([]byte(nil), b.Photo...); !cmp.Equal(b, want) {
			t.Errorf("key %v (-want +got):\n%s", before, cmp.Diff(want, b))
		}
		l := loader{full(before)}
		if r := mappertest.ApplyKey(t, empty, key, &l, mapper.NoParams{}); r.Err != nil || !r.Changed {
			t.Errorf("loader, key %v: %+v", before, r)
		}
		if l.Photo = append([]byte(nil), l.Photo...); !cmp.Equal(l.basket, want) {
			t.Errorf("loader, key %v (-want +got):\n%s", before, cmp.Diff(want, l.basket))
		}
	}
	// In a PropertyList, the field for the key is no property, as in Datastore.
	b := full(key)
	saved, err := datastore.SaveStruct(&b)
	if err != nil {
		t.Fatal(err)
	}
	list := datastore.PropertyList(saved)
	if r := mappertest.ApplyKey(t, empty, key, &list, mapper.NoParams{}); r.Err != nil || len(list) != 2 ||
		strings.Contains(fmt.Sprint(list), "__key__") {
		t.Errorf("%+v: %v", r, list)
	}
}

// TestUntouched checks that an entity is unchanged after an error, even if the function has changed
// data inside it.
func TestUntouched(t *testing.T) {
	m := mapper.Update("spoil", func(_ context.Context, b *mapper.Entity[basket], _ mapper.NoParams) error {
		b.Value.Photo[0], b.Value.Items[0], b.Value.Lines[1].Key.Name = 'x', "x", "x"
		return errors.New("no")
	})
	b, want := full(nil), full(nil)
	if r := mappertest.Apply(t, m, &b, mapper.NoParams{}); r.Err == nil || !cmp.Equal(b, want) {
		t.Errorf("%+v (-want +got):\n%s", r, cmp.Diff(want, b))
	}
}

// TestUnknownProperties uses entities with properties that the test's type does not declare, also
// inside embedded entities. The declared properties must be loaded.
func TestUnknownProperties(t *testing.T) {
	type newLine struct{ N, M int64 }
	type newBasket struct {
		Items []string
		Added string
		Lines []newLine
		Z     int64
	}
	m := mapper.Update("extend", func(_ context.Context, b *mapper.Entity[newBasket], _ mapper.NoParams) error {
		b.Value = newBasket{Items: []string{"c"}, Added: "x", Lines: []newLine{{1, 2}}, Z: 1}
		return nil
	})
	want := basket{Key: datastore.NameKey("Entity", "test", nil), Items: []string{"c"}, Lines: []line{{N: 1}}}
	b := basket{Lines: []line{{N: 5}}} // a nil key is not stored
	if r := mappertest.Apply(t, m, &b, mapper.NoParams{}); r.Err != nil || !cmp.Equal(b, want) {
		t.Errorf("%+v (-want +got):\n%s", r, cmp.Diff(want, b))
	}
	// In this case the client itself leaves out values that do not fit.
	want.Lines = nil
	var l loader
	if r := mappertest.Apply(t, m, &l, mapper.NoParams{}); r.Err != nil || !cmp.Equal(l.Items, want.Items) {
		t.Errorf("%+v: %+v", r, l)
	}
}

// A fakeT records the call of Fatalf that ends a test.
type fakeT struct{ fatal string }

func (f *fakeT) Helper() {}

func (f *fakeT) Fatalf(format string, args ...any) {
	f.fatal = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// TestFatal checks that invalid arguments end the test, with a text that says why.
func TestFatal(t *testing.T) {
	key := datastore.IDKey("Account", 7, nil)
	var noMapper *mapper.Mapper[credit]
	var noAccount *account
	var noList *datastore.PropertyList
	number := 5
	name := mapper.Update("name", func(_ context.Context, a *mapper.Entity[account], _ credit) error {
		a.Value.Owner = "Ann"
		return nil
	})
	for _, c := range []struct {
		want   string
		m      *mapper.Mapper[credit]
		key    *datastore.Key
		entity any
	}{
		{"the mapper is nil", noMapper, key, &account{}},
		{"the key is nil", addCredit, nil, &account{}},
		{"is incomplete", addCredit, datastore.IncompleteKey("Account", nil), &account{}},
		{"the entity is a <nil>, want a pointer", addCredit, key, nil},
		{"the entity is a nil *mappertest_test.account", addCredit, key, noAccount},
		{"the entity is a nil *datastore.PropertyList", addCredit, key, noList},
		{"the entity is a mappertest_test.account, want a pointer", addCredit, key, account{}},
		{"a *int, can't be saved", addCredit, key, &number},
		{"a *mappertest_test.unsaved, can't be saved: not me", addCredit, key, &unsaved{}},
		{"can't be loaded into a *mappertest_test.unkeyed: no key for me", name, key, new(unkeyed)},
		{`"Owner"`, name, key, &omitted{}},
	} {
		var f fakeT
		done := make(chan any)
		go func() {
			defer func() { done <- recover() }()
			mappertest.ApplyKey(&f, c.m, c.key, c.entity, credit{})
		}()
		if r := <-done; r != nil || !strings.HasPrefix(f.fatal, "mappertest: ") || !strings.Contains(f.fatal, c.want) {
			t.Errorf("want %q: %q, panic %v", c.want, f.fatal, r)
		}
	}
}

// These types have errors: an unsaved can't be saved, an unkeyed can't load its key, and an omitted
// can't load the owner of an account.
type (
	unsaved struct{ datastore.PropertyList }
	unkeyed struct{ datastore.PropertyList }
	omitted struct {
		Owner int64 `datastore:",omitempty"`
	}
)

func (*unsaved) Save() ([]datastore.Property, error) { return nil, errors.New("not me") }
func (*unkeyed) LoadKey(*datastore.Key) error        { return errors.New("no key for me") }
