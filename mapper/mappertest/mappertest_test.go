package mappertest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

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

func TestApply(t *testing.T) {
	a := account{Balance: 5, Owner: "Ann"}
	r := mappertest.Apply(t, addCredit, &a, credit{10})
	if r.Err != nil || !r.Changed || r.Deleted || a.Balance != 15 || a.Owner != "Ann" || r.Counters["credited"] != 1 || len(r.Put) != 1 || r.Put["/Receipt,test"][0].Value != int64(10) {
		t.Errorf("%+v, %+v", r, a)
	}
	if r := mappertest.Apply(t, addCredit, &a, credit{}); r.Err != nil || r.Changed || len(r.Put)+len(r.Counters) > 0 || a.Balance != 15 {
		t.Errorf("nothing to change: %+v, %+v", r, a)
	}
	if r := mappertest.Apply(t, addCredit, &account{Balance: 5}, credit{1}); !r.Deleted || r.Changed || len(r.Removed) != 1 {
		t.Errorf("deleted: %+v", r)
	}
	if r := mappertest.Apply(t, addCredit, &account{Balance: -5, Owner: "Ann"}, credit{1}); r.Err == nil || r.Changed {
		t.Errorf("an error: %+v", r)
	}
	// What the mapper's type does not declare stays, and what does not fit is an
	// error.
	list := datastore.PropertyList{{Name: "Balance", Value: int64(1)}, {Name: "Owner", Value: "Ann"}, {Name: "Other", Value: "x"}}
	if r := mappertest.ApplyKey(t, addCredit, datastore.IDKey("Account", 7, nil), &list, credit{1}); r.Err != nil || !strings.Contains(fmt.Sprint(list), "Other") {
		t.Errorf("%+v, %+v", r, list)
	}
	misfit := datastore.PropertyList{{Name: "Balance", Value: "much"}}
	if r := mappertest.Apply(t, addCredit, &misfit, credit{1}); r.Err == nil || !strings.Contains(r.Err.Error(), "Balance") {
		t.Errorf("a misfit: %+v", r)
	}
}

// TestRun runs a whole job, calm and in trouble: each account is credited once.
func TestRun(t *testing.T) {
	for _, seed := range []uint64{0, 1, 2, 3} {
		mappertest.Run(t, mapper.Set(addCredit), &mappertest.Options{Seed: seed}, func(t *testing.T, w *mappertest.World) {
			var keys []*datastore.Key
			var accounts []account
			for i := range 300 {
				keys = append(keys, datastore.IDKey("Account", int64(i+1), nil))
				accounts = append(accounts, account{Balance: int64(i), Owner: "Ann"})
			}
			if _, err := w.Client.PutMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			job, err := addCredit.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, credit{10}, &mapper.StartOptions{PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			w.Trouble()
			time.Sleep(24 * time.Hour) // virtual
			w.Calm()
			s, err := job.Status(t.Context())
			if err != nil || s.State != mapper.Succeeded || s.Counters["credited"] != 300 {
				t.Errorf("seed %d: %+v, %v", seed, s, err)
			}
			if err := w.Client.GetMulti(t.Context(), keys, accounts); err != nil {
				t.Fatal(err)
			}
			for i, a := range accounts {
				if a.Balance != int64(i)+10 {
					t.Errorf("seed %d: %v has %d", seed, keys[i], a.Balance)
				}
			}
		})
	}
}
