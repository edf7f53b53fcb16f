package dashboard_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// manyRanges adds n records of ranges to a running job, and returns their IDs. They are copies of
// the first range's record with other IDs, spread over the key space. A tenth of them are open, and
// some are failures.
func manyRanges(t testing.TB, w *world, job string, n int) (ids []string) {
	t.Helper()
	var found []datastore.PropertyList
	keys, err := w.client.GetAll(t.Context(), datastore.NewQuery("ScattermapRange"), &found)
	if err != nil || len(keys) != 1 {
		t.Fatalf("%d ranges, %v", len(keys), err)
	}
	prefix := keys[0].Name[:strings.LastIndex(keys[0].Name, ".")+1]
	rng := rand.New(rand.NewPCG(1, 1))
	now := time.Now().UTC().Truncate(time.Microsecond)
	group, ctx := errgroup.WithContext(t.Context())
	group.SetLimit(2)
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		var all []datastore.PropertyList
		for i := first; i < min(n, first+500); i++ {
			id := fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64())
			ids = append(ids, id)
			start := &datastore.Entity{
				Properties: []datastore.Property{{Name: "key", Value: datastore.IDKey("Account", int64(i+1)*500, nil),
					NoIndex: true}}}
			set := map[string]any{"id": id, "depth": int64(1 + i%7), "start": start, "estimate": int64(500),
				"created": now}
			drop := map[string]bool{}
			switch {
			case i%1000 == 1:
				set["state"], set["failed"], set["error"], set["alone"], set["done"] = "done", job,
					fmt.Sprintf("account %d is closed", i), true, now
				drop["open"] = true
			case i%10 != 0:
				set["state"], set["processed"], set["entities"], set["written"], set["ran"], set["done"] = "done",
					int64(500), int64(500), int64(500), int64(rng.IntN(1e9)), now
				drop["open"] = true
			}
			var p datastore.PropertyList
			for _, from := range found[0] {
				if _, ok := set[from.Name]; !ok && !drop[from.Name] {
					p = append(p, from)
				}
			}
			for name, v := range set {
				p = append(p, datastore.Property{Name: name, Value: v, NoIndex: name != "failed"})
			}
			keys, all = append(keys, datastore.NameKey("ScattermapRange", prefix+id, nil)), append(all, p)
		}
		group.Go(func() error {
			_, err := w.client.PutMulti(ctx, keys, all)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return ids
}

// everybody are options that allow all requests.
var everybody = &dashboard.Options{Allow: func(*http.Request) (string, error) { return "", nil }}

// crowded returns a world with a running job that has n ranges, and the IDs of the ranges.
func crowded(t testing.TB, n int) (w *world, ids []string) {
	t.Helper()
	w = newEngine(t)
	w.refuses.Store(true)
	w.putAccounts(t, 1)
	w.start(t, "many", `{"Amount": 1}`, mapper.StartOptions{})
	ids = manyRanges(t, w, "many", n)
	return w, ids
}

// crowdedPages returns the addresses of the pages about the job with many ranges.
func crowdedPages(ids []string) []string {
	return []string{"/", "/?name=many", "/job?id=many", "/job?id=many&colour=pace", "/job?id=many&format=json",
		"/failures?id=many", "/replay?id=many", "/replay.svg?id=many", "/range?job=many&range=" + ids[0],
		"/start?mapper=credit", "/act?do=abort&id=many"}
}

func (w *world) calls() (sum int64) {
	for _, n := range w.emulator.Usage().RPCs {
		sum += n
	}
	return sum
}

// TestManyRanges shows each page of a job with 200,000 ranges. A page needs at most twelve calls,
// and the list six more for its counts.
func TestManyRanges(t *testing.T) {
	testflag.Sequential(t)
	n := testflag.Size(t, 5000, 5000, 200_000)
	w, ids := crowded(t, n)
	for _, at := range crowdedPages(ids) {
		for _, first := range []bool{true, false} {
			h := dashboard.NewHandler(w.engine, everybody) // a new dashboard, whose cache is empty
			before, begun := w.calls(), time.Now()
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, at, nil))
			took, made := time.Since(begun), w.calls()-before
			most := int64(12)
			if at == "/" || strings.HasPrefix(at, "/?") {
				most += 6 // for counting the jobs in each state
			}
			if rec.Code != http.StatusOK || made > most {
				t.Errorf("%s: %d, %d calls", at, rec.Code, made)
			}
			if !first { // the first time, the emulated Datastore builds its indexes
				t.Logf("%-28s %3d calls, %7.1f ms, %6.1f kB", at[:min(len(at), 28)], made,
					float64(took.Microseconds())/1000, float64(rec.Body.Len())/1000)
			}
		}
	}
}

// BenchmarkPages measures each page of a job with 200,000 ranges, with an empty cache.
func BenchmarkPages(b *testing.B) {
	w, ids := crowded(b, 200_000)
	for _, at := range crowdedPages(ids) {
		b.Run(strings.Map(func(r rune) rune {
			if strings.ContainsRune("?&=/", r) {
				return '.'
			}
			return r
		}, at[1:min(len(at), 20)]), func(b *testing.B) {
			look := func() {
				h := dashboard.NewHandler(w.engine, everybody)
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, at, nil))
				if rec.Code != http.StatusOK {
					b.Fatal(rec.Code)
				}
			}
			look() // the emulated Datastore builds an index when it is first used
			for b.Loop() {
				look()
			}
		})
	}
}
