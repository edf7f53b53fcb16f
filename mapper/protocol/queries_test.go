package protocol_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A user is an entity with a property of each type by which jobs can be sharded.
type user struct {
	UserID  int64     `datastore:"userid"`
	Active  bool      `datastore:"active"`
	Plan    string    `datastore:"plan"`
	Joined  time.Time `datastore:"joined"`
	Score   float64   `datastore:"score"`
	Name    string    `datastore:"name"`
	Checked int64     `datastore:"checked,noindex"`
}

var epoch = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)

// putUsers puts n users, half of them active. The values of their properties are in random order.
func (w *world) putUsers(rng *rand.Rand, n int) (keys []*datastore.Key, users []user) {
	w.Helper()
	for i := range n {
		group := datastore.NameKey("Group", fmt.Sprint("g", i%3), nil)
		keys = append(keys, datastore.IDKey("User", 1+rng.Int64N(1<<50), group))
		users = append(users, user{
			UserID: 1000 + rng.Int64N(1<<20), Active: rng.IntN(2) == 0,
			Plan:   []string{"free", "pro", "team"}[rng.IntN(3)],
			Joined: epoch.Add(time.Duration(rng.Int64N(1e6)) * time.Minute), Score: rng.NormFloat64() * 100,
			Name: fmt.Sprintf("%c%x", 'a'+rng.IntN(26), rng.Uint32()),
		})
		if i%5 == 0 {
			users[i].UserID = 7777 // many users have this value
		}
	}
	for i := 0; i < n; i += 400 {
		if _, err := w.client.PutMulti(w.Context(), keys[i:min(n, i+400)], users[i:min(n, i+400)]); err != nil {
			w.Fatal(err)
		}
	}
	return keys, users
}

// checkUser is an Update that sets the flag to false by which queries filter.
var checkUser = mapper.Update("check-user", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
	u.Value.Active = false
	u.Value.Checked++
	u.Count("checked", 1)
	return nil
})

var lookAtUser = mapper.Visit("look-at-user", func(context.Context, *mapper.Entity[user], mapper.NoParams) error {
	return nil
})

// queries has the forms of queries, each with a function that reports which users the query finds.
var queries = map[string]struct {
	query mapper.Query
	want  func(k *datastore.Key, u user) bool
}{
	"equality": {mapper.Query{Filters: []mapper.Filter{mapper.Where("active", "=", true)}},
		func(_ *datastore.Key, u user) bool {
			return u.Active
		}},
	"two equalities": {mapper.Query{Filters: []mapper.Filter{mapper.Where("active", "=", true),
		mapper.Where("plan", "=", "pro")}}, func(_ *datastore.Key, u user) bool {
		return u.Active && u.Plan == "pro"
	}},
	"in": {mapper.Query{Filters: []mapper.Filter{mapper.Where("plan", "in", []string{"pro", "team"})}},
		func(_ *datastore.Key, u user) bool {
			return u.Plan != "free"
		}},
	"inequality": {mapper.Query{Filters: []mapper.Filter{mapper.Where("score", ">", 12.5),
		mapper.Where("score", "<=", 80.0)}}, func(_ *datastore.Key, u user) bool {
		return u.Score > 12.5 && u.Score <= 80
	}},
	"ancestor": {mapper.Query{Ancestor: datastore.NameKey("Group", "g1", nil)}, func(k *datastore.Key, _ user) bool {
		return k.Parent.Name == "g1"
	}},
	"range of keys": {mapper.Query{Start: datastore.IDKey("User", 1<<49, datastore.NameKey("Group", "g0", nil)),
		End: datastore.IDKey("User", 1<<49, datastore.NameKey("Group", "g2", nil))}, between},
	"integer":     {mapper.Query{ShardBy: "userid"}, everybody},
	"time":        {mapper.Query{ShardBy: "joined"}, everybody},
	"string":      {mapper.Query{ShardBy: "name"}, everybody},
	"few strings": {mapper.Query{ShardBy: "plan"}, everybody},
	"float":       {mapper.Query{ShardBy: "score"}, everybody},
	"integer, active": {mapper.Query{ShardBy: "userid", Filters: []mapper.Filter{mapper.Where("active", "=", true)}},
		func(_ *datastore.Key, u user) bool {
			return u.Active
		}},
	"some integers": {mapper.Query{ShardBy: "userid", Filters: []mapper.Filter{mapper.Where("userid", ">=", 7777),
		mapper.Where("userid", "<=", 500_000)}}, func(_ *datastore.Key, u user) bool {
		return u.UserID >= 7777 && u.UserID <= 500_000
	}},
	"some times": {mapper.Query{ShardBy: "joined",
		Filters: []mapper.Filter{mapper.Where("joined", ">", epoch.AddDate(1, 0, 0))}},
		func(_ *datastore.Key, u user) bool {
			return u.Joined.After(epoch.AddDate(1, 0, 0))
		}},
	"integer in ancestor": {mapper.Query{ShardBy: "userid", Ancestor: datastore.NameKey("Group", "g1", nil)},
		func(k *datastore.Key, _ user) bool {
			return k.Parent.Name == "g1"
		}},
}

func everybody(*datastore.Key, user) bool { return true }

func between(k *datastore.Key, _ user) bool {
	switch k.Parent.Name {
	case "g0":
		return k.ID >= 1<<49
	case "g2":
		return k.ID < 1<<49
	}
	return true
}

// TestQueries runs a job over each form of query. The function changes a property by which some of
// the queries filter.
func TestQueries(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	sizes := []int{0, testflag.Size(t, 700, 700, 4000)}
	if !testing.Short() {
		sizes = append(sizes, 1, 90)
	}
	for name, test := range queries {
		for _, n := range sizes {
			t.Run(fmt.Sprint(name, n), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					w := newWorld(t, setting{emulator: emulator.Options{}}, checkUser)
					keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), n)
					test.query.Kind = "User"
					job, err := checkUser.Start(t.Context(), w.engine, test.query, mapper.NoParams{},
						&mapper.StartOptions{PageSize: 20, ExpectedWorkers: 10, AllowEmpty: true})
					if err != nil {
						t.Fatal(err)
					}
					begun := time.Now()
					s := w.wait(job)
					w.wantChecked(keys, users, test.want, s)
					if time.Since(begun) > 20*time.Second {
						t.Errorf("the job takes %v: %+v", time.Since(begun), s)
					}
					if full := s.Processed / 20; s.Pages > full*3/2+20 {
						t.Errorf("%d pages for %d full ones", s.Pages, full)
					}
				})
			})
		}
	}
}

// wantChecked checks that the job has processed exactly the users that the query finds, each once.
func (w *world) wantChecked(
	keys []*datastore.Key, users []user, want func(*datastore.Key, user) bool, s *mapper.Status,
) {
	w.Helper()
	wrong, n := 0, int64(0)
	for i := 0; i < len(keys); i += 1000 {
		now := make([]user, min(1000, len(keys)-i))
		if err := w.client.GetMulti(w.Context(), keys[i:i+len(now)], now); err != nil {
			w.Fatal(err)
		}
		for j, u := range now {
			checked := int64(0)
			if want(keys[i+j], users[i+j]) {
				checked = 1
			}
			if n += checked; u.Checked != checked {
				if wrong++; wrong <= 3 {
					w.Errorf("%v, %+v was checked %d times, want %d", keys[i+j], users[i+j], u.Checked, checked)
				}
			}
		}
	}
	if wrong > 3 {
		w.Errorf("%d of %d users are wrong", wrong, len(keys))
	}
	if s.Processed != n || s.Counters["checked"] != n || s.Failures != 0 {
		w.Errorf("%+v, want %d processed", s, n)
	}
	proof, err := w.engine.Job(s.ID).Verify(w.Context(), nil)
	if err != nil || len(proof.Problems) > 0 {
		w.Errorf("proof %+v, %v", proof, err)
	}
}

// TestValues runs jobs that are sharded by a property which some entities lack, which is a list in
// others, and which the function changes.
func TestValues(t *testing.T) {
	t.Parallel()
	moving := mapper.Update("move", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if u.Value.UserID%50 == 3 {
			u.Value.UserID += 1000
		}
		u.Value.Checked++
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, moving)
		for i := range 500 {
			list := datastore.PropertyList{{Name: "plan", Value: "free"}}
			switch {
			case i < 7: // lacks the property
			case i < 12:
				list = append(list,
					datastore.Property{Name: "userid", Value: []any{int64(i), int64(i + 100), int64(i + 2000)}})
			case i < 15:
				list = append(list, datastore.Property{Name: "userid", Value: int64(i), NoIndex: true})
			default:
				list = append(list, datastore.Property{Name: "userid", Value: int64(i)})
			}
			if _, err := w.client.Put(t.Context(), datastore.IDKey("User", int64(i+1), nil), &list); err != nil {
				t.Fatal(err)
			}
		}
		job, err := moving.Start(t.Context(), w.engine, mapper.Query{Kind: "User", ShardBy: "userid"},
			mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20, FailureShare: 1})
		if err != nil {
			t.Fatal(err)
		}
		s, err := job.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		// 485 entities have one value. In these, the function changes the ones with the values 53,
		// 103, …, 453.
		const moved, lists = 9, 5
		if s.State != mapper.StateSucceededWithFailures || s.Failures != moved+lists || s.Processed != 485-moved {
			t.Errorf("status %+v", s)
		}
		failures, _, err := job.FailuresPage(t.Context(), "")
		if err != nil {
			t.Fatal(err)
		}
		seen := make(map[int64]bool)
		for _, f := range failures {
			if seen[f.Key.ID] || !strings.Contains(f.Error, "one value, and must not change") {
				t.Errorf("%+v", f)
			}
			seen[f.Key.ID] = true
		}
		proof, err := job.Verify(t.Context(), nil)
		if err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
	})
}

// TestUnsharded checks that a job counts the entities without the property by which it is sharded.
func TestUnsharded(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	namespaces := []string{""}
	for i := range 100 {
		namespaces = append(namespaces, fmt.Sprint("n", i))
	}
	for name, test := range map[string]struct {
		interceptor grpc.UnaryServerInterceptor
		kinds       []string
		namespaces  []string
		want        int64
	}{
		"counted":         {want: 30},
		"not counted":     {interceptor: uncounted(0, codes.Unimplemented), want: -1},
		"several spaces":  {kinds: []string{"Guest", "User"}, namespaces: namespaces[:50], want: 30},
		"too many spaces": {namespaces: namespaces, want: -1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{emulator: emulator.Options{Interceptor: test.interceptor}}, checkUser)
				keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), 600)
				for i := range 30 {
					list := datastore.PropertyList{{Name: "active", Value: true}}
					if _, err := w.client.Put(t.Context(), datastore.IDKey("User", int64(i+1), nil),
						&list); err != nil {
						t.Fatal(err)
					}
				}
				active := mapper.Query{Kinds: test.kinds, Namespaces: test.namespaces, ShardBy: "userid",
					Filters: []mapper.Filter{mapper.Where("active", "=", true)}}
				if len(test.kinds) == 0 {
					active.Kind = "User"
				}
				job, err := checkUser.Start(t.Context(), w.engine, active, mapper.NoParams{},
					&mapper.StartOptions{PageSize: 20, AllowEmpty: true})
				if err != nil {
					t.Fatal(err)
				}
				s := w.wait(job)
				w.wantChecked(keys, users, func(_ *datastore.Key, u user) bool { return u.Active }, s)
				if s.WithoutShardBy != test.want {
					t.Errorf("%d are without the property, want %d", s.WithoutShardBy, test.want)
				}
			})
		})
	}
}

// TestOneValue runs a job that is sharded by a property whose value is the same in 5,000 entities.
func TestOneValue(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser)
		n := 6000
		if testing.Short() {
			n = 3000
		}
		keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), n)
		for i := range users {
			users[i].UserID = 5
			if i >= n*5/6 {
				users[i].UserID = int64(i % 10)
			}
		}
		for i := 0; i < len(keys); i += 400 {
			if _, err := w.client.PutMulti(t.Context(), keys[i:min(len(keys), i+400)],
				users[i:min(len(keys), i+400)]); err != nil {
				t.Fatal(err)
			}
		}
		job, err := checkUser.Start(t.Context(), w.engine, mapper.Query{Kind: "User", ShardBy: "userid"},
			mapper.NoParams{},
			&mapper.StartOptions{PageSize: 100})
		if err != nil {
			t.Fatal(err)
		}
		s := w.wait(job)
		w.wantChecked(keys, users, everybody, s)
		// Each worker has a page and a fifth of another page, so it makes two pages.
		if s.MaxDepth < 1 || s.Tasks < 10 || s.Pages > int64(n/100*3/2+20) {
			t.Errorf("it is not cut well: %+v", s)
		}
	})
}

// TestMovingValues shards a job by a property. Other clients change this property, and so move
// entities in the order of the job. An entity that moves ahead may be processed at both places, but
// no page may be processed twice.
func TestMovingValues(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		slow := mapper.Update("slow", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
			time.Sleep(time.Millisecond)
			u.Value.Checked++
			return nil
		})
		w := newWorld(t, setting{queue: few(3)}, slow)
		rng := rand.New(rand.NewPCG(1, 0))
		keys, _ := w.putUsers(rng, 2000)
		job, err := slow.Start(t.Context(), w.engine, mapper.Query{Kind: "User", ShardBy: "userid"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		moved := make(map[string]bool)
		for range 200 {
			time.Sleep(2 * time.Millisecond)
			k := keys[rng.IntN(len(keys))]
			_, err := w.client.RunInTransaction(t.Context(), func(tx *datastore.Transaction) error {
				var u user
				if err := tx.Get(k, &u); err != nil {
					return err
				}
				u.UserID = rng.Int64N(1 << 21)
				_, err := tx.Put(k, &u)
				return err
			})
			if err == nil {
				moved[k.Encode()] = true
			}
		}
		w.wait(job)
		for i := 0; i < len(keys); i += 1000 {
			now := make([]user, 1000)
			if err := w.client.GetMulti(t.Context(), keys[i:i+1000], now); err != nil {
				t.Fatal(err)
			}
			for j, u := range now {
				if most := int64(1 + boolToInt(moved[keys[i+j].Encode()])); u.Checked > most || u.Checked == 0 &&
					most == 1 {
					t.Errorf("%v was checked %d times", keys[i+j], u.Checked)
				}
			}
		}
		proof, err := job.Verify(t.Context(), nil)
		if err != nil || len(proof.Problems) > 0 {
			t.Errorf("proof %+v, %v", proof, err)
		}
	})
}

// TestVisitValues runs a Visit that is sharded by a property which is a list in some entities.
func TestVisitValues(t *testing.T) {
	t.Parallel()
	seen := mapper.Visit("see", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		u.Count("seen", 1)
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, seen)
		for i := range 600 {
			list := datastore.PropertyList{{Name: "userid", Value: int64(i)}}
			if i%200 == 7 {
				list[0].Value = []any{int64(i), int64(i + 1000)}
			}
			if _, err := w.client.Put(t.Context(), datastore.IDKey("User", int64(i+1), nil), &list); err != nil {
				t.Fatal(err)
			}
		}
		job, err := seen.Start(t.Context(), w.engine, mapper.Query{Kind: "User", ShardBy: "userid"}, mapper.NoParams{},
			&mapper.StartOptions{PageSize: 20})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), longestJob)
		defer cancel()
		s, err := job.Wait(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if s.State != mapper.StateSucceededWithFailures || s.Processed != 597 || s.Failures != 3 ||
			s.Counters["seen"] != 597 {
			t.Errorf("status %+v", s)
		}
	})
}

// forged is the number of users that forgeTenants puts.
const forged = 400

// forgeTenants is a mapper that puts users with the key of a tenant in the property "of". The tenants
// are in the given project, by default in the database's own. If the other project comes after the own
// one, the first users have keys of the own one.
var forgeTenants = mapper.Update("forge",
	func(_ context.Context, e *mapper.Entity[mapper.NoParams], project string) error {
		for i := range forged {
			of := e.Stored().Key.PartitionId
			if project != "" && (i >= forged/4 || project < of.ProjectId) {
				of = &pb.PartitionId{ProjectId: project, DatabaseId: of.DatabaseId}
			}
			tenant := &pb.Key{PartitionId: of, Path: []*pb.Key_PathElement{{Kind: "Tenant",
				IdType: &pb.Key_PathElement_Id{Id: int64(i + 1)}}}}
			e.PutStored(datastore.IDKey("User", int64(i+1), nil), &pb.Entity{Properties: map[string]*pb.Value{
				"of": {ValueType: &pb.Value_KeyValue{KeyValue: tenant}}}})
		}
		return nil
	})

// TestForeignValues runs jobs that are sharded by a property whose values are keys of another project.
// The Go client takes them for keys of its own project, so a job that splits its range at them would
// miss entities, and succeed. The job must fail instead, and name an entity. If the first entity has
// such a value, the start must be refused.
func TestForeignValues(t *testing.T) {
	t.Parallel()
	type nothing = mapper.NoParams
	see := mapper.Visit("see", func(context.Context, *mapper.Entity[nothing], nothing) error { return nil })
	for _, project := range []string{"", "aaa", "zzz"} {
		for _, size := range []int{5, 100} {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, setting{}, forgeTenants, see)
				defer time.Sleep(time.Minute) // the emulator still answers queries that are not needed any more
				mould := datastore.NameKey("Mould", "m", nil)
				if _, err := w.client.Put(t.Context(), mould, new(datastore.PropertyList)); err != nil {
					t.Fatal(err)
				}
				job, err := forgeTenants.Start(t.Context(), w.engine, mapper.Query{Kind: "Mould"}, project, nil)
				if err != nil {
					t.Fatal(err)
				}
				if _, err := job.Wait(t.Context()); err != nil {
					t.Fatal(err)
				}
				job, err = see.Start(t.Context(), w.engine, mapper.Query{Kind: "User", ShardBy: "of"}, nothing{},
					&mapper.StartOptions{PageSize: size})
				const says = `in the entity /User,`
				if project == "aaa" {
					if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), says) {
						t.Errorf("%d of %q: %v", size, project, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				s, err := job.Wait(t.Context())
				if err != nil || project == "" && (s.State != mapper.StateSucceeded || s.Processed != forged) ||
					project != "" && (s.State != mapper.StateFailed || !strings.Contains(s.Error, says)) {
					t.Errorf("%d of %q: %+v, %v", size, project, s, err)
				}
			})
		}
	}
}

var writeQueries = flag.Bool("queries", false, "write the table of TestCombinations to docs/queries.md")

// features are the features that TestCombinations combines in queries.
var features = []struct {
	name string
	add  func(q *mapper.Query)
}{
	{"`Kinds`", func(q *mapper.Query) { q.Kind, q.Kinds = "", []string{"User", "Guest"} }},
	{"`Namespaces`", func(q *mapper.Query) { q.Namespaces = []string{"", "n"} }},
	{"`AllNamespaces`", func(q *mapper.Query) { q.AllNamespaces = true }},
	{"equality", func(q *mapper.Query) { q.Filters = append(q.Filters, mapper.Where("active", "=", true)) }},
	{"`in`", func(q *mapper.Query) {
		q.Filters = append(q.Filters, mapper.Where("plan", "in", []string{"free", "pro"}))
	}},
	{"inequality", func(q *mapper.Query) { q.Filters = append(q.Filters, mapper.Where("score", ">", 0.0)) }},
	{"`Ancestor`", func(q *mapper.Query) { q.Ancestor = datastore.NameKey("Group", "g1", nil) }},
	{"`Start`, `End`", func(q *mapper.Query) {
		q.Start = datastore.IDKey("User", 1, datastore.NameKey("Group", "g0", nil))
		q.End = datastore.IDKey("User", 1, datastore.NameKey("Group", "g2", nil))
	}},
	{"`ShardBy`", func(q *mapper.Query) { q.ShardBy = "userid" }},
	{"`ShardBy`, and an inequality on it", func(q *mapper.Query) {
		q.ShardBy = "userid"
		q.Filters = append(q.Filters, mapper.Where("userid", ">=", 5000))
	}},
	{"`ReadTime`", func(q *mapper.Query) { q.ReadTime = time.Unix(1, 0) }},
	{"`KeysOnly`", func(q *mapper.Query) { q.KeysOnly = true }},
}

// A verdict is the answer of Start to a query, if the database has only the given composite
// indexes.
type verdict struct {
	cell   string // the text in the table of docs/queries.md
	reason string
}

// ask starts a job over a query of users, in a new world with the given indexes, and returns the
// verdict.
func ask(t *testing.T, q mapper.Query, indexes []byte) (a verdict, err error) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{emulator: emulator.Options{Indexes: indexes}}, checkUser, lookAtUser)
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 60)
		m := checkUser
		if q.KeysOnly || !q.ReadTime.IsZero() { // such a query allows only a Visit
			m = lookAtUser
		}
		if !q.ReadTime.IsZero() {
			time.Sleep(time.Second)
			q.ReadTime = time.Now()
			time.Sleep(time.Second)
		}
		job, started := m.Start(t.Context(), w.engine, q, mapper.NoParams{},
			&mapper.StartOptions{ID: "j", PageSize: 10, AllowEmpty: true})
		if err = started; err == nil {
			w.wait(job)
		} else if _, missing := w.engine.Job("j").Status(t.Context()); !errors.Is(missing, mapper.ErrNoSuchJob) {
			t.Errorf("%+v: refused, and there is a job: %v", q, missing)
		}
	})
	switch {
	case err == nil:
		a.cell = "yes"
	case !errors.Is(err, mapper.ErrInvalidArgument):
		t.Errorf("query %+v: %v", q, err)
	case strings.Contains(err.Error(), "needs an index"):
		a.cell = "index"
	default:
		a.cell, a.reason = "no", err.Error()[strings.Index(err.Error(), "arguments: ")+len("arguments: "):]
	}
	return a, err
}

// TestCombinations starts jobs over queries with each pair of features, and compares the verdicts
// with the table in docs/queries.md. If an index is missing, the error must contain lines for
// index.yaml with which the query works.
func TestCombinations(t *testing.T) {
	t.Parallel()
	testflag.Sequential(t)
	var table, reasons strings.Builder
	table.WriteString("| |")
	for _, f := range features {
		fmt.Fprintf(&table, " %s |", f.name)
	}
	table.WriteString("\n|---|" + strings.Repeat("---|", len(features)) + "\n")
	notes := make(map[string]int)
	for i, f := range features {
		fmt.Fprintf(&table, "| %s |", f.name)
		for j, g := range features {
			if j > i {
				table.WriteString(" |")
				continue
			}
			q := mapper.Query{Kind: "User"}
			f.add(&q)
			if i != j {
				g.add(&q)
			}
			a, err := ask(t, q, []byte("indexes: []"))
			if a.cell == "index" {
				_, lines, _ := strings.Cut(err.Error(), "built:\n")
				lines, _, _ = strings.Cut(lines, "\nThe database says")
				if _, err := ask(t, q, []byte(lines)); err != nil {
					t.Errorf("%s and %s, with the index that the error names: %v", f.name, g.name, err)
				}
			}
			if a.reason != "" {
				if notes[a.reason] == 0 {
					notes[a.reason] = len(notes) + 1
					fmt.Fprintf(&reasons, "%d. %s\n", notes[a.reason], a.reason)
				}
				a.cell = fmt.Sprintf("no (%d)", notes[a.reason])
			}
			fmt.Fprintf(&table, " %s |", a.cell)
		}
		table.WriteString("\n")
	}
	const path, begin, end = "../../docs/queries.md", "<!-- TestCombinations -->\n", "<!-- end -->\n"
	have, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(have), begin)
	_, after, found := strings.Cut(rest, end)
	want := before + begin + "\n" + table.String() + "\n" + reasons.String() + "\n" + end + after
	if *writeQueries {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	} else if !found || want != string(have) {
		t.Errorf("docs/queries.md is not what queries can have; write it again: go test ./mapper/protocol -run "+
			"TestCombinations -args -queries\n%s%s", table.String(), reasons.String())
	}
}

// TestQueryRefused starts jobs over queries that Datastore can't run, or that a job can't process.
func TestQueryRefused(t *testing.T) {
	t.Parallel()
	key := datastore.IDKey("User", 5, nil)
	in := func(n int) mapper.Filter {
		values := make([]int, n)
		for i := range values {
			values[i] = i
		}
		return mapper.Where(fmt.Sprint("p", n), "in", values)
	}
	where := func(f ...mapper.Filter) mapper.Query { return mapper.Query{Kind: "User", Filters: f} }
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, checkUser, lookAtUser)
		now := time.Now()
		for want, q := range map[string]mapper.Query{
			"Query.Kind is empty": {},
			"filter in the function": {Kind: "User",
				Filters: []mapper.Filter{mapper.Where("plan", "!=", "x")}},
			"not one of =, <, <=, >, >=, in":    where(mapper.Where("plan", "==", "x")),
			"is a struct {}":                    where(mapper.Where("plan", "=", struct{}{})),
			"and not a slice of values":         where(mapper.Where("plan", "in", "x")),
			"0 values, and not 1 to 30":         where(mapper.Where("plan", "in", []string{})),
			"31 values, and not 1 to 30":        where(in(31)),
			"come to 36 combinations":           where(in(4), in(9)),
			"Query.Start and Query.End":         where(mapper.Where("__key__", ">", key)),
			"the name is reserved":              where(mapper.Where("__scatter__", "=", 1)),
			"the name of the property is empty": where(mapper.Where("", "=", 1)),
			"longer than 1500 bytes":            where(mapper.Where("plan", "=", strings.Repeat("x", 1501))),
			"not UTF-8":                         where(mapper.Where("plan", "=", "\xff")),
			"the key is incomplete": where(mapper.Where("plan", "=",
				datastore.IncompleteKey("User", nil))),
			"Query.Start /Other,1 is of the kind": {Kind: "User", Start: datastore.IDKey("Other", 1, nil)},
			"Query.End: the key is incomplete":    {Kind: "User", End: datastore.IncompleteKey("User", nil)},
			"is not before Query.End":             {Kind: "User", Start: key, End: key},
			"bounds keys":                         {Kind: "User", Start: key, ShardBy: "userid"},
			"Query.Ancestor is in the namespace": {Kind: "User", Namespace: "a",
				Ancestor: &datastore.Key{Kind: "Group", ID: 1, Namespace: "b"}},
			"Query.ShardBy \"__key__\" is reserved": {Kind: "User", ShardBy: "__key__"},
			"leaves no values to cut between": {Kind: "User", ShardBy: "plan",
				Filters: []mapper.Filter{mapper.Where("plan", "=", "x")}},
			"Query.Filters leave no values": {Kind: "User", ShardBy: "userid",
				Filters: []mapper.Filter{mapper.Where("userid", ">", 5), mapper.Where("userid", "<=", 5)}},
			"holds scattermap's own records": {Kind: record.JobKind},
			"Query.ReadTime is for a Visit":  {Kind: "User", ReadTime: now},
		} {
			_, err := checkUser.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil)
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), want) {
				t.Errorf("%+v: %v, want an error with %q", q, err, want)
			}
		}
		_, err := lookAtUser.Start(t.Context(), w.engine, mapper.Query{Kind: "User", KeysOnly: true, ShardBy: "userid"},
			mapper.NoParams{}, nil)
		if !errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(fmt.Sprint(err), "whether the property is a list") {
			t.Errorf("a Visit: %v", err)
		}
	})
}
