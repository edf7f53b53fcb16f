package mapper_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// damaged runs a job with some failures, and calls test with its records.
func damaged(t *testing.T, test func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, failing77)
		w.putAccounts(names(500))
		if s := over(w, failing77, &mapper.StartOptions{ID: "j", PageSize: 50}); s.Failures != 5 {
			t.Fatalf("status %+v", s)
		}
		job := w.engine.Job("j")
		var all []datastore.PropertyList
		keys, err := w.client.GetAll(t.Context(), datastore.NewQuery(record.RangeKind), &all)
		if err != nil {
			t.Fatal(err)
		}
		test(w, job, keys, all)
		w.put(keys, all)
		if proof, err := job.Verify(t.Context()); err != nil || len(proof.Problems) > 0 {
			t.Errorf("undamaged: %+v, %v", proof, err)
		}
	})
}

// put puts entities of several keys, in calls of a size that the database takes.
func (w *world) put(keys []*datastore.Key, all []datastore.PropertyList) {
	w.Helper()
	for i := 0; i < len(keys); i += 400 {
		end := min(i+400, len(keys))
		if _, err := w.client.PutMulti(w.Context(), keys[i:end], all[i:end]); err != nil {
			w.Fatal(err)
		}
	}
}

// TestVerifyFindsLoss takes records away, one of every sort, and properties of them: each is
// found.
func TestVerifyFindsLoss(t *testing.T) {
	testflag.Sequential(t)
	damaged(t, func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList) {
		sealed := []string{"", "processed", "state", "end", "start", "failed", "entities", "keys", "seal", "children",
			"recorded", "error"}
		for i, k := range keys {
			for n, name := range sealed {
				damage := func() error { return w.client.Delete(w.Context(), k) }
				if n > 0 {
					damage = func() error {
						_, err := w.client.Put(w.Context(), k, new(without(all[i], name)))
						return err
					}
				}
				if err := damage(); err != nil {
					w.Fatal(err)
				}
				proof, err := job.Verify(w.Context())
				same := n > 0 && len(without(all[i], name)) == len(all[i])
				if err != nil || same != (len(proof.Problems) == 0) {
					w.Errorf("without %q of %v: %+v, %v", name, all[i], proof, err)
				}
				if _, err := w.client.Put(w.Context(), k, &all[i]); err != nil {
					w.Fatal(err)
				}
			}
		}
	})
}

// TestVerifyFindsChange changes records so that they still fit each other: each change is found.
func TestVerifyFindsChange(t *testing.T) {
	testflag.Sequential(t)
	damaged(t, func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList) {
		at := func(list datastore.PropertyList, name string) int {
			return slices.IndexFunc(list, func(p datastore.Property) bool { return p.Name == name })
		}
		// Two neighbours, and one that is of a single entity.
		one, other, alone := -1, -1, -1
		for i, list := range all {
			if at(list, "alone") >= 0 {
				alone = i
			}
			for j, next := range all {
				end, start := at(list, "end"), at(next, "start")
				if i != j && end >= 0 && start >= 0 && at(list, "processed") >= 0 && at(next, "processed") >= 0 &&
					positionKey(list[end]).Equal(positionKey(next[start])) {
					one, other = i, j
				}
			}
		}
		if one < 0 || other < 0 || alone < 0 {
			w.Fatalf("%d, %d, %d", one, other, alone)
		}
		position := func(name string) *datastore.Entity {
			return &datastore.Entity{
				Properties: []datastore.Property{{Name: "key", Value: datastore.NameKey("Account", name, nil),
					NoIndex: true}}}
		}
		jobKey := datastore.NameKey(record.JobKind, "j", nil)
		var jobList datastore.PropertyList
		if err := w.client.Get(w.Context(), jobKey, &jobList); err != nil {
			w.Fatal(err)
		}
		text := func(list datastore.PropertyList, name string) string {
			return string(list[at(list, name)].Value.([]byte))
		}
		processed := all[one][at(all[one], "processed")].Value.(int64)
		for name, change := range map[string]func(set func(i int, name string, value any)){
			"a single entity's record is of another entity": func(set func(int, string, any)) {
				set(alone, "start", position("user-0000005"))
			},
			"a boundary is moved between two neighbours": func(set func(int, string, any)) {
				p := position(positionKey(all[one][at(all[one], "end")]).Name + "a")
				set(one, "end", p)
				set(other, "start", p)
			},
			"what was processed is moved between records": func(set func(int, string, any)) {
				set(one, "processed", processed-1)
				set(other, "processed", all[other][at(all[other], "processed")].Value.(int64)+1)
			},
			"nothing was processed, as the totals say, too": func(set func(int, string, any)) {
				for i, list := range all {
					if at(list, "processed") >= 0 {
						set(i, "processed", int64(0))
					}
				}
				set(-1, "totals",
					[]byte(strings.Replace(text(jobList, "totals"), `"processed":495`, `"processed":0`, 1)))
			},
			"a filter is added to the query": func(set func(int, string, any)) {
				set(-1, "query",
					[]byte(strings.Replace(text(jobList, "query"), `"kind":"Account"`,
						`"kind":"Account","filters":[{"property":"Balance","op":">","value":5}]`, 1)))
			},
			"the mapper is another":            func(set func(int, string, any)) { set(-1, "mapper", "another") },
			"a page is said to have been full": func(set func(int, string, any)) { set(alone, "full", true) },
			"a failure had other attempts":     func(set func(int, string, any)) { set(alone, "refusals", int64(99)) },
			"a range has too many children":    func(set func(int, string, any)) { set(one, "children", int64(1)<<40) },
		} {
			changed, changedJob := make([]datastore.PropertyList, len(all)), slices.Clone(jobList)
			for i := range all {
				changed[i] = slices.Clone(all[i])
			}
			change(func(i int, name string, value any) {
				list := &changedJob
				if i >= 0 {
					list = &changed[i]
				}
				if n := at(*list, name); n >= 0 {
					(*list)[n].Value = value
				} else {
					*list = append(*list, datastore.Property{Name: name, Value: value, NoIndex: true})
				}
			})
			w.put(keys, changed)
			if _, err := w.client.Put(w.Context(), jobKey, &changedJob); err != nil {
				w.Fatal(err)
			}
			proof, err := job.Verify(w.Context())
			if err != nil || len(proof.Problems) == 0 {
				w.Errorf("%s: %+v, %v", name, proof, err)
			} else {
				w.Logf("%s: %s", name, proof.Problems[0])
			}
			if _, err := w.client.Put(w.Context(), jobKey, &jobList); err != nil {
				w.Fatal(err)
			}
		}
	})
}

// TestVerifyFindsNames stores a record under another name, which is the job's, too.
func TestVerifyFindsNames(t *testing.T) {
	damaged(t, func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList) {
		other := datastore.NameKey(keys[3].Kind, keys[3].Name[:len(keys[3].Name)-4]+"0000", nil)
		w.put([]*datastore.Key{other}, all[3:4])
		if err := w.client.Delete(w.Context(), keys[3]); err != nil {
			w.Fatal(err)
		}
		if proof, err := job.Verify(w.Context()); err != nil || len(proof.Problems) == 0 ||
			!strings.Contains(proof.Problems[0], other.Name) {
			w.Errorf("%+v, %v", proof, err)
		}
		if err := w.client.Delete(w.Context(), other); err != nil {
			w.Fatal(err)
		}
	})
}

func positionKey(p datastore.Property) *datastore.Key {
	for _, q := range p.Value.(*datastore.Entity).Properties {
		if k, ok := q.Value.(*datastore.Key); ok && k != nil {
			return k
		}
	}
	return new(datastore.Key)
}

// TestCompletionChecksRecords takes a record away while a job runs, or changes one: the job does
// not succeed.
func TestCompletionChecksRecords(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func(w *world, key *datastore.Key, list datastore.PropertyList) error{
		"a record is lost": func(w *world, key *datastore.Key, _ datastore.PropertyList) error {
			return w.client.Delete(w.Context(), key)
		},
		"a record is changed": func(w *world, key *datastore.Key, list datastore.PropertyList) error {
			_, err := w.client.Put(w.Context(), key, new(without(list, "processed")))
			return err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{queue: few(2)}, slowCredit)
			w.putAccounts(names(1000))
			job := w.startSlow()
			time.Sleep(3 * time.Second)
			var all []datastore.PropertyList
			keys, err := w.client.GetAll(t.Context(), datastore.NewQuery(record.RangeKind), &all)
			if err != nil {
				t.Fatal(err)
			}
			i := slices.IndexFunc(all, func(list datastore.PropertyList) bool {
				return len(without(list, "processed")) < len(list)
			})
			if err := damage(w, keys[i], all[i]); err != nil {
				t.Fatal(err)
			}
			s, err := job.Wait(t.Context())
			if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, "records do not add up") {
				t.Errorf("%s: %+v, %v", name, s, err)
			}
			w.put(keys[i:i+1], all[i:i+1])
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			w.wait(job)
			w.wantBalances(names(1000), 10)
		})
	}
}

// TestCompletionChecksEntities has an entity tried again by itself, and meanwhile moves its record
// to another entity: the job does not succeed.
func TestCompletionChecksEntities(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		keys := names(100)
		once := mapper.Update("once", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Equal(keys[50]) && a.Value.Owner != "mended" {
				return mapper.RetryAfter(errors.New("later"), time.Minute)
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{}, once)
		newFleet(w, 1, 1, once).fails.Store(true)
		w.putAccounts(keys)
		job, err := once.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second)
		var all []datastore.PropertyList
		records, err := w.client.GetAll(t.Context(), datastore.NewQuery(record.RangeKind).FilterField("open", ">", ""),
			&all)
		if err != nil || len(records) != 1 || propertyOf(all[0], "alone") != true {
			t.Fatalf("%v, %v, %v", records, all, err)
		}
		start := &datastore.Entity{Properties: []datastore.Property{{Name: "key", Value: keys[5], NoIndex: true}}}
		w.put(records,
			[]datastore.PropertyList{append(without(all[0], "start"), datastore.Property{Name: "start", Value: start,
				NoIndex: true})})
		s, err := job.Wait(t.Context())
		if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, "records do not add up") {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestVerifyEntities compares the ranges of a job with the entities that are there now, and were
// there before somebody put and deleted some.
func TestVerifyEntities(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	lists := mapper.Visit("look", func(context.Context, *mapper.Entity[member], mapper.NoParams) error { return nil })
	for name, q := range map[string]mapper.Query{
		"keys": {Kind: "Account"}, "values": {Kind: "Account", ShardBy: "Rank"},
		"filter": {Kind: "Account", Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
		"spaces": {Kinds: []string{"Account", "Other"}, AllNamespaces: true},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, setting{}, lists)
			keys := names(1000)
			members := make([]member, len(keys))
			for i := range members {
				members[i] = member{Active: true, Rank: int64(i % 7)}
			}
			for i := 0; i < len(keys); i += 500 {
				if _, err := w.client.PutMulti(t.Context(), keys[i:i+500], members[i:i+500]); err != nil {
					t.Fatal(err)
				}
			}
			job, err := lists.Start(t.Context(), w.engine, q, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 50, AllowEmpty: true})
			if err != nil {
				t.Fatal(err)
			}
			s := w.wait(job)
			check := func(what string, at time.Time, different int) {
				t.Helper()
				proof, err := job.VerifyEntities(t.Context(), at)
				if err != nil || len(proof.Problems) > 0 || proof.Compared != proof.Ranges ||
					proof.Different != different || len(proof.Differences) != different ||
					int64(proof.Compared) < s.Pages {
					t.Errorf("%s, %s: %+v, %v", name, what, proof, err)
				}
			}
			check("as it was", time.Time{}, 0)
			time.Sleep(2 * time.Second)
			before := time.Now().Truncate(time.Second)
			time.Sleep(2 * time.Second)
			if _, err := w.client.Put(t.Context(), datastore.NameKey("Account", "user-0000500-a", nil),
				&members[3]); err != nil {
				t.Fatal(err)
			}
			check("one more", time.Time{}, 1)
			if err := w.client.Delete(t.Context(), datastore.NameKey("Account", "user-0000500-a", nil)); err != nil {
				t.Fatal(err)
			}
			check("one more, and gone", time.Time{}, 0)
			if err := w.client.Delete(t.Context(), keys[3]); err != nil {
				t.Fatal(err)
			}
			if _, err := w.client.Put(t.Context(), datastore.NameKey("Account", "user-0000003-a", nil),
				&members[3]); err != nil {
				t.Fatal(err)
			}
			check("another in the place of one", time.Time{}, 1)
			if q.AllNamespaces {
				return // they are listed as they are now
			}
			check("before", before, 0)
		})
	}
}

// without returns properties without one that is not zero.
func without(list datastore.PropertyList, name string) datastore.PropertyList {
	var rest datastore.PropertyList
	for _, p := range list {
		if k, isKey := p.Value.(*datastore.Key); p.Name != name || p.Value == int64(0) || p.Value == nil ||
			isKey && k == nil {
			rest = append(rest, p)
		}
	}
	return rest
}
