package protocol_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestManySpaces runs a job over three kinds in all of 1,000 namespaces, whose numbers of entities
// differ much.
func TestManySpaces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	spaces := testflag.Size(t, 60, 100, 1000)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{queue: few(20)}, checkUser)
		rng := rand.New(rand.NewPCG(1, 0))
		want := make(map[mapper.KindStatus]bool)
		var keys []*datastore.Key
		for i := range spaces {
			for j, kind := range []string{"Admin", "Guest", "User"} {
				// 4,000 entities of a kind in one namespace, and few or none in most others
				n := 4000 / (1 + 10*((i+7*j)%spaces))
				if n == 0 {
					n = rng.IntN(2)
				}
				namespace := fmt.Sprintf("ns-%04d", i*7919%10007)
				if i == 0 {
					namespace = ""
				}
				if n > 0 {
					want[mapper.KindStatus{Namespace: namespace, Kind: kind, Processed: int64(n)}] = true
				}
				for k := range n {
					keys = append(keys, &datastore.Key{Kind: kind, ID: int64(k + 1), Namespace: namespace})
				}
			}
		}
		for batch := range slices.Chunk(keys, 400) {
			if _, err := w.client.PutMulti(t.Context(), batch, make([]user, len(batch))); err != nil {
				t.Fatal(err)
			}
		}
		job, err := checkUser.Start(t.Context(), w.engine,
			mapper.Query{Kinds: []string{"User", "Guest", "Admin", "None"}, AllNamespaces: true}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 50, ExpectedWorkers: 20, AllowEmpty: true})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		if s.Processed != int64(len(keys)) || len(s.ByKind) != len(want) {
			t.Errorf("%d of %d entities in %d spaces of %d", s.Processed, len(keys), len(s.ByKind), len(want))
		}
		for _, space := range s.ByKind {
			if !want[space] {
				t.Errorf("%+v", space)
			}
		}
		full := int64(0)
		for space := range want {
			full += (space.Processed + 49) / 50
		}
		t.Logf("%d entities in %d spaces: %d tasks, %d pages of at least %d, depth %d", len(keys), len(want), s.Tasks,
			s.Pages, full, s.MaxDepth)
		if s.Pages > full*5/4+100 || s.Tasks > s.Pages {
			t.Errorf("%d tasks and %d pages, %d would do", s.Tasks, s.Pages, full)
		}
		for batch := range slices.Chunk(keys, 1000) {
			users := make([]user, len(batch))
			if err := w.client.GetMulti(t.Context(), batch, users); err != nil {
				t.Fatal(err)
			}
			if i := slices.IndexFunc(users, func(u user) bool { return u.Checked != 1 }); i >= 0 {
				t.Fatalf("%v was checked %d times", batch[i], users[i].Checked)
			}
		}
		proof, err := job.Verify(t.Context(), nil)
		if err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
	})
}

// TestSpaces runs jobs over several kinds and namespaces. It combines them with other features of
// queries, and with entities that fail.
func TestSpaces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	failing := mapper.Update("failing", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if u.Key.ID == 13 {
			return mapper.Permanent(fmt.Errorf("no"))
		}
		u.Value.Checked++
		return nil
	})
	active := []mapper.Filter{mapper.Where("active", "=", true)}
	for name, q := range map[string]mapper.Query{
		"kinds":         {Kinds: []string{"A", "B"}},
		"namespaces":    {Kind: "A", Namespaces: []string{"n2", "n1", ""}},
		"all":           {Kinds: []string{"B", "A"}, AllNamespaces: true},
		"all, filter":   {Kinds: []string{"B", "A"}, AllNamespaces: true, Filters: active},
		"all, by value": {Kinds: []string{"B", "A"}, AllNamespaces: true, ShardBy: "userid"},
		"all, value, filter": {Kinds: []string{"B", "A"}, AllNamespaces: true, ShardBy: "userid",
			Filters: append(active, mapper.Where("userid", ">=", 100))},
		"kinds below ancestor": {Kinds: []string{"A", "B"},
			Ancestor: &datastore.Key{Kind: "G", ID: 1, Namespace: "n1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{queue: few(8)}, failing)
				rng := rand.New(rand.NewPCG(1, 0))
				want := make(map[string]mapper.KindStatus)
				var keys []*datastore.Key
				var users []user
				for _, kind := range []string{"A", "B", "C"} {
					for _, namespace := range []string{"", "n1", "n2", "n3"} {
						for i := range 300 {
							k := &datastore.Key{Kind: kind, ID: int64(i + 1), Namespace: namespace}
							if i%2 == 0 {
								k.Parent = &datastore.Key{Kind: "G", ID: 1, Namespace: namespace}
							}
							u := user{UserID: rng.Int64N(1000), Active: rng.IntN(2) == 0}
							keys, users = append(keys, k), append(users, u)
							if !slices.Contains(append(q.Kinds, q.Kind), kind) || len(q.Namespaces) > 0 &&
								!slices.Contains(q.Namespaces, namespace) ||
								!q.AllNamespaces && len(q.Namespaces) == 0 && q.Ancestor == nil && namespace != "" ||
								q.Ancestor != nil && (namespace != "n1" || i%2 != 0) ||
								len(q.Filters) > 0 && !u.Active || len(q.Filters) > 1 && u.UserID < 100 {
								continue
							}
							s := want[namespace+"/"+kind]
							s.Namespace, s.Kind = namespace, kind
							if s.Processed++; k.ID == 13 {
								s.Processed--
								s.Failures++
							}
							want[namespace+"/"+kind] = s
						}
					}
				}
				putMany(w, keys, users)
				job, err := failing.Start(t.Context(), w.engine, q, mapper.NoParams{},
					&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 8})
				if err != nil {
					t.Fatal(err)
				}
				s, err := job.Wait(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if !s.State.Ended() || len(s.ByKind) != len(want) {
					t.Errorf("status %+v", s)
				}
				for _, space := range s.ByKind {
					if space != want[space.Namespace+"/"+space.Kind] {
						t.Errorf("%+v, want %+v", space, want[space.Namespace+"/"+space.Kind])
					}
				}
				proof, err := job.Verify(t.Context(), nil)
				if err != nil || len(proof.Problems) > 0 {
					t.Errorf("proof %+v, %v", proof, err)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// TestSharedSpace runs a job over several kinds and namespaces. One kind of one namespace has
// nearly all entities. After the job was cut between them, all workers must still share that one.
func TestSharedSpace(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := mapper.Update("slow", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
			time.Sleep(10 * time.Millisecond)
			u.Value.Checked++
			return nil
		})
		w := newWorld(t, setting{queue: few(8)}, slow)
		var keys []*datastore.Key
		for namespace, n := range map[string]int{"n1": 10, "n2": 4000, "n3": 10} {
			for i := range n {
				keys = append(keys, &datastore.Key{Kind: "A", ID: int64(i + 1), Namespace: namespace})
			}
		}
		putMany(w, keys, make([]user, len(keys)))
		job, err := slow.Start(t.Context(), w.engine, mapper.Query{Kind: "A", AllNamespaces: true}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 50, ExpectedWorkers: 8})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		if took, shared := s.Ended.Sub(s.Created), time.Duration(len(keys))*10*time.Millisecond/8; took > 2*shared {
			t.Errorf("it took %v, and eight workers need %v", took, shared)
		}
	})
}

// TestVisitShared visits entities, some of them slowly, so that ranges are cut while their entities
// are read. Each entity must be visited, and few may be read twice. The number depends on where the
// cuts happen to be, so the test takes the best of three jobs.
func TestVisitShared(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	reads := int64(math.MaxInt64)
	for range 3 {
		synctest.Test(t, func(t *testing.T) { reads = min(reads, visitShared(t)) })
	}
	if reads > 13_550 {
		t.Errorf("%d reads of 12,000 entities in the best of three jobs", reads)
	}
}

// visitShared runs the job of TestVisitShared once, and returns its number of reads.
func visitShared(t *testing.T) int64 {
	t.Helper()
	var visits atomic.Int64
	keys := names(12_000)
	slow := keys[9000].Name
	m := mapper.Visit("slow", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		visits.Add(1)
		time.Sleep(2 * time.Millisecond)
		if a.Key.Name >= slow {
			time.Sleep(30 * time.Millisecond)
		}
		return nil
	})
	w := newWorld(t, setting{queue: few(4)}, m)
	w.putAccounts(keys)
	before := w.emulator.Usage()
	job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ExpectedWorkers: 4, PageSize: 400})
	if err != nil {
		t.Fatal(err)
	}
	s := w.wait(job)
	reads := w.emulator.Usage().Sub(before).Reads
	if s.Processed != 12_000 || visits.Load() != 12_000 {
		t.Errorf("%d visits, %d processed", visits.Load(), s.Processed)
	}
	t.Logf("%d reads, %d tasks, %d pages", reads, s.Tasks, s.Pages)
	return reads
}

// TestPlanManyNamespaces checks that a plan reads at most 1,000 namespaces, and says that it has
// not read all.
func TestPlanManyNamespaces(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	m := mapper.Visit("m", func(context.Context, *mapper.Entity[account], mapper.NoParams) error { return nil })
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		put := func(from, to int) {
			var keys []*datastore.Key
			for i := from; i < to; i++ {
				keys = append(keys, &datastore.Key{Kind: "Account", Name: "a", Namespace: fmt.Sprintf("n%04d", i)})
			}
			if _, err := w.Client.PutMulti(t.Context(), keys, make([]account, len(keys))); err != nil {
				t.Fatal(err)
			}
		}
		q := mapper.Query{Kind: "Account", AllNamespaces: true}
		put(0, 500)
		put(500, 1000)
		est, err := w.Engine.PlanByName(t.Context(), "m", q, nil)
		if err != nil || est.Entities != 1000 || !est.Exact || est.LowerBound {
			t.Errorf("1,000 namespaces: %+v, %v", est, err)
		}
		put(1000, 1100)
		more, err := w.Engine.PlanByName(t.Context(), "m", q, nil)
		if err != nil || more.Entities != 1000 || more.Exact || !more.LowerBound || more.Spent.Reads > est.Spent.Reads {
			t.Errorf("1,100 namespaces: %+v, %v, want at least 1,000 for %d reads", more, err, est.Spent.Reads)
		}
	})
}
