package protocol_test

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/bridge"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// damaged runs a job with some failures, and calls test with the job's records, so that it can
// damage them.
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
		if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
			t.Errorf("undamaged: %+v, %v", proof, err)
		}
	})
}

// put puts entities, in calls of a size that the database accepts.
func (w *world) put(keys []*datastore.Key, all []datastore.PropertyList) {
	w.Helper()
	for i := 0; i < len(keys); i += 400 {
		end := min(i+400, len(keys))
		if _, err := w.client.PutMulti(w.Context(), keys[i:end], all[i:end]); err != nil {
			w.Fatal(err)
		}
	}
}

// TestVerifyFindsLoss deletes records of a job, one of each kind, and properties of records. Verify
// must find each loss.
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
				proof, err := job.Verify(w.Context(), nil)
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

// TestVerifyFindsChange changes several records of a job together, so that they still fit to each
// other. Verify must find each change.
func TestVerifyFindsChange(t *testing.T) {
	testflag.Sequential(t)
	damaged(t, func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList) {
		at := func(list datastore.PropertyList, name string) int {
			return slices.IndexFunc(list, func(p datastore.Property) bool { return p.Name == name })
		}
		// Find the records of two adjacent ranges, and of a range with a single entity.
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
			proof, err := job.Verify(w.Context(), nil)
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

// TestVerifyFindsNames moves a record to another name that a record of the same job could have.
// Verify must find this.
func TestVerifyFindsNames(t *testing.T) {
	damaged(t, func(w *world, job *mapper.Job, keys []*datastore.Key, all []datastore.PropertyList) {
		other := datastore.NameKey(keys[3].Kind, keys[3].Name[:len(keys[3].Name)-4]+"0000", nil)
		w.put([]*datastore.Key{other}, all[3:4])
		if err := w.client.Delete(w.Context(), keys[3]); err != nil {
			w.Fatal(err)
		}
		if proof, err := job.Verify(w.Context(), nil); err != nil || len(proof.Problems) == 0 ||
			!strings.Contains(proof.Problems[0], other.Name) {
			w.Errorf("proof %+v, %v", proof, err)
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

// TestCompletionChecksRecords deletes or changes a record while the job runs. The job must not
// succeed.
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

// TestCompletionChecksEntities waits until a failed entity has a range of its own, and replaces the
// entity in this range's record by another one. The job must not succeed.
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
		time.Sleep(3 * time.Minute) // its page may have to wait before that
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
			t.Errorf("status %+v, %v", s, err)
		}
	})
}

// TestVerifyEntities lets Verify compare the ranges of a job with the entities: with the present
// ones, and with the ones at a time before some were put and deleted.
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
				proof, err := job.Verify(t.Context(), &mapper.VerifyOptions{Entities: true, ReadTime: at})
				if err != nil || len(proof.Problems) > 0 || proof.Compared != proof.Ranges ||
					proof.Different != different || len(proof.Differences) != different ||
					int64(proof.Compared) < s.Pages {
					t.Errorf("%s, %s: %+v, %v", name, what, proof, err)
				}
			}
			check("as it was", time.Time{}, 0)
			time.Sleep(2 * time.Second)
			before := time.Now().Truncate(time.Second).Add(time.Nanosecond) // Datastore allows microseconds only
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
				return // these ranges are listed by the entities that exist now
			}
			check("before", before, 0)
		})
	}
}

// without returns a copy of a list of properties that lacks one property. This property must be in
// the list, and not zero.
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

// An additions is an interceptor that observes how the end of a job adds up its records. Long
// additions store drafts: the sums so far.
type additions struct {
	// number of drafts stored, of requests about drafts, and of records read for the addition
	drafts, touched, read atomic.Int64

	mu   sync.Mutex
	kept func(n int64) // called after each draft with the number of drafts so far
}

func (a *additions) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	if m, ok := req.(proto.Message); ok && containsText(m, record.DraftKind) {
		a.touched.Add(1)
	}
	resp, err := handler(ctx, req)
	if q, ok := req.(*datastorepb.RunQueryRequest); ok && err == nil &&
		q.GetQuery().GetKind()[0].Name == record.RangeKind &&
		// this query does not ask for crash marks, so it is part of an addition
		len(q.GetQuery().GetFilter().GetCompositeFilter().GetFilters()) == 2 && len(q.GetQuery().GetProjection()) == 0 {
		a.read.Add(int64(len(resp.(*datastorepb.RunQueryResponse).Batch.EntityResults)))
	}
	if err == nil && drafts(req) {
		n := a.drafts.Add(1)
		a.mu.Lock()
		defer a.mu.Unlock()
		if a.kept != nil {
			a.kept(n)
		}
	}
	return resp, err
}

func containsText(m proto.Message, text string) bool {
	b, err := proto.Marshal(m)
	return err == nil && bytes.Contains(b, []byte(text))
}

// TestEndInParts ends a job with many records while processes die during the addition of the
// records, before and after drafts of the sums are stored. The addition is one task, or a chain of
// tasks. The totals must be exact, and no record may be added twice.
func TestEndInParts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n, deaths := testflag.Size(t, 3000, 3000, 6000), testflag.Size(t, 3, 3, 8)
	for name, c := range map[string]struct {
		longest time.Duration
		deaths  int
	}{
		"one task": {0, 0}, "one task, deaths": {0, deaths}, "chain": {time.Nanosecond, 0},
		"chain, deaths": {time.Nanosecond, deaths},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const portion = 3
				var a additions
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
				w.putAccounts(names(n))
				f := newFleet(w, 1, 2, addCredit)
				f.addIn(portion, c.longest)
				f.stops.dieAdding(c.deaths, 0.5, rand.New(rand.NewPCG(1, 1)))
				job, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{PageSize: 10})
				if err != nil {
					t.Fatal(err)
				}
				time.Sleep(time.Hour)
				read, kept := a.read.Load(), a.drafts.Load()
				s := w.status(job)
				if s.State != mapper.StateSucceeded || s.Processed != int64(n) || s.Counters["credited"] != int64(n) {
					t.Errorf("status %+v", s)
				}
				ranges := int64(w.count(record.RangeKind, "id"))
				if again := int64(f.deaths()+1) * 16 * portion; read < ranges || read > ranges+again ||
					kept < ranges/(16*portion) || f.deaths() != c.deaths {
					t.Errorf("%d records were read of %d, and %d drafts kept; %d processes died", read, ranges, kept,
						f.deaths())
				}
				if proof, err := job.Verify(t.Context(), nil); err != nil || len(proof.Problems) > 0 {
					t.Errorf("proof %+v, %v", proof, err)
				}
				if n := w.count(record.DraftKind, "epoch"); n != 0 {
					t.Errorf("%d drafts are left", n)
				}
			})
		})
	}
}

// TestEndAtOnce ends a job with few records. No draft of the sums may be stored or read.
func TestEndAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a additions
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
		w.putAccounts(names(1000))
		w.wait(w.start(10, &mapper.StartOptions{PageSize: 10}))
		// Two deliveries that end at the same time may both check whether the job is complete.
		if n := int64(w.count(record.RangeKind, "id")); a.touched.Load() > 0 || a.read.Load() > 2*n {
			t.Errorf("%d requests are about drafts, and %d records were read of %d", a.touched.Load(), a.read.Load(), n)
		}
	})
}

// TestEndOfLostLinks loses every task that continues the addition of a job's records. Sweeps must
// continue the addition where it stopped.
func TestEndOfLostLinks(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var a additions
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, addCredit)
		bridge.Portion(w.engine, 10, time.Nanosecond)
		w.putAccounts(names(6000))
		lost := 0
		var late sync.WaitGroup
		a.kept = func(int64) {
			if lost < 3 {
				lost++
				late.Go(func() { // after the task was enqueued
					time.Sleep(time.Millisecond)
					w.lose("/mapper/finalize")
				})
			}
		}
		job := w.start(10, &mapper.StartOptions{PageSize: 10})
		w.wait(job)
		late.Wait()
		if ranges := int64(w.count(record.RangeKind, "id")); lost != 3 || a.read.Load() > ranges+3*160 {
			t.Errorf("%d tasks were lost; %d records were read of %d", lost, a.read.Load(), ranges)
		}
	})
}

// TestDraftOfAnotherEpoch retries failures while the job's records are added up. A draft of the
// sums from before the retry must not be used.
func TestDraftOfAnotherEpoch(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		var a additions
		var mended atomic.Bool
		fails := mapper.Update("fails", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
			if a.Key.Name[len(a.Key.Name)-2:] == "77" && !mended.Load() {
				return mapper.Permanent(errors.New("no"))
			}
			a.Value.Balance += 10
			return nil
		})
		w := newWorld(t, setting{emulator: emulator.Options{Interceptor: a.intercept}}, fails)
		bridge.Portion(w.engine, 10, 0)
		w.putAccounts(names(n))
		job, err := fails.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 10, ID: "j"})
		if err != nil {
			t.Fatal(err)
		}
		retried := make(chan error, 1)
		a.kept = func(n int64) {
			if n == 3 {
				mended.Store(true)
				retried <- job.Retry(context.Background(), nil)
			}
		}
		if err := <-retried; err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != n || s.Failures != 0 {
			t.Errorf("status %+v", s)
		}
		w.wantBalances(names(n), 10)
	})
}

// TestAbortedInParts cleans up an aborted job, while the processes that add up its records die. The
// totals must be exactly the changes that took effect.
func TestAbortedInParts(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const n = 6000
		var a additions
		w := newWorld(t, setting{queue: few(4), emulator: emulator.Options{Interceptor: a.intercept}}, slowCredit)
		w.putAccounts(names(n))
		f := newFleet(w, 1, 2, slowCredit)
		f.addIn(2, 10*time.Millisecond)
		f.stops.dieAdding(5, 0.5, rand.New(rand.NewPCG(1, 1)))
		job, err := slowCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{10},
			&mapper.StartOptions{ID: "j", PageSize: 5})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		if err := job.Abort(t.Context()); err != nil {
			t.Fatal(err)
		}
		before := w.status(job)
		time.Sleep(time.Minute)
		if err := job.CleanUp(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		time.Sleep(24 * time.Hour)
		after, credited := w.status(job), w.credited(n)
		if after.Processed != credited || after.Counters["credited"] != credited || after.Estimated ||
			after.CleaningUp ||
			a.drafts.Load() < 5 || f.deaths() != 5 {
			t.Errorf("%d were credited, %d drafts kept, and %d processes died; status %+v", credited, a.drafts.Load(),
				f.deaths(), after)
		}
		if !before.Estimated || before.Processed < credited*3/4 || before.Processed > credited*5/4 {
			t.Errorf("before: %+v, %d were credited", before, credited)
		}
		for _, kind := range []string{record.DraftKind, record.RangeKind} {
			if n, err := w.client.Count(t.Context(), datastore.NewQuery(kind)); err != nil || n != 0 {
				t.Errorf("%d records of kind %s are left, %v", n, kind, err)
			}
		}
	})
}
