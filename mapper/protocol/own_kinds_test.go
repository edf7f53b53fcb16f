package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestOwnKinds runs functions that read and write scattermap's own records in all ways, even the
// record of their own job. Each entity must become a failure that names the kind, and the records
// must stay unchanged. In another namespace, these kinds are the user's, and everything is allowed.
func TestOwnKinds(t *testing.T) {
	t.Parallel()
	ways := []func(context.Context, *mapper.Entity[account], *datastore.Key) error{
		func(_ context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			a.Put(key, &account{})
			return nil
		},
		func(_ context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			a.Insert(key, &account{})
			return nil
		},
		func(_ context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			a.PutStored(key, a.Stored())
			return nil
		},
		func(_ context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			a.InsertStored(key, a.Stored())
			return nil
		},
		func(_ context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			a.Delete(key)
			return nil
		},
		func(ctx context.Context, a *mapper.Entity[account], key *datastore.Key) error {
			err := a.Get(ctx, key, new(datastore.PropertyList))
			if errors.Is(err, datastore.ErrNoSuchEntity) {
				return nil
			}
			return err
		},
	}
	kinds := []string{record.JobKind, record.RangeKind, record.DraftKind, record.BatchKind, "ScattermapSchedule",
		"ScattermapSlot", "ScattermapPart", "ScattermapFile"}
	for _, namespace := range []string{"", "mine"} {
		synctest.Test(t, func(t *testing.T) {
			meddles := mapper.Update("meddles", func(ctx context.Context, a *mapper.Entity[account], _ credit) error {
				i := int(a.Value.Balance)
				a.Value.Owner = "done"
				key := datastore.NameKey(kinds[i/len(ways)], "mine", nil) // a record of this job
				if namespace != "" {
					key.Name, key.Namespace = a.Key.Name, namespace
				}
				return ways[i%len(ways)](ctx, a, key)
			})
			w := newWorld(t, setting{}, meddles)
			n := len(ways) * len(kinds)
			for i := range n {
				_, err := w.client.Put(t.Context(), datastore.NameKey("Account", fmt.Sprintf("%03d", i), nil),
					&account{Balance: int64(i)})
				w.must(err)
			}
			job, err := meddles.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{},
				&mapper.StartOptions{ID: "mine", PageSize: 10, FailureLimit: -1})
			w.must(err)
			s, err := job.Wait(t.Context())
			w.must(err)
			if namespace != "" {
				if s.State != mapper.StateSucceeded || int(s.Processed) != n {
					t.Errorf("in another namespace: %+v", s)
				}
				return
			}
			if s.State != mapper.StateSucceededWithFailures || int(s.Failures) != n {
				t.Errorf("%+v", s)
			}
			for f, err := range job.Failures(t.Context()) {
				w.must(err)
				if !strings.Contains(f.Error, "scattermap's own records") || f.Attempts != 1 {
					t.Errorf("%v: %+v", f.Key, f)
				}
			}
			if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
				t.Errorf("%+v, %v", proof, err)
			}
			for _, kind := range kinds {
				switch err := w.client.Get(t.Context(), datastore.NameKey(kind, "mine", nil),
					new(datastore.PropertyList)); {
				case kind == record.JobKind && err == nil, errors.Is(err, datastore.ErrNoSuchEntity):
				default:
					t.Errorf("%s: %v", kind, err)
				}
			}
		})
	}
}
