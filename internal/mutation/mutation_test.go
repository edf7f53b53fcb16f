// Package mutation_test breaks the protocol of package mapper, to see that its
// simulation finds that. It is apart from that package because it takes long.
package mutation_test

import (
	"cmp"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

const mapperDir = "../../mapper"

// A mutation breaks the protocol: it replaces text in a file of package mapper.
type mutation struct {
	name, file, old, new string

	test string // that finds it; empty: TestSimulation
	seed int    // that mostly finds it, and is tried first; 0: 2
}

var mutations = []mutation{
	{
		name: "children are enqueued before they are committed", file: "run.go",
		old: `	if err := w.recordSplit(ctx, pieces); err != nil {`,
		new: `	before := w.record.Children
	w.record.Children += int64(len(pieces) - 1)
	if err := w.enqueueChildren(ctx); err != nil {
		return err
	}
	w.record.Children = before
	if err := w.recordSplit(ctx, pieces); err != nil {`,
	},
	{
		name: "there is no fence", file: "fence.go",
		old: `	known := w.record
`,
		new: `	known := w.record
	if known != nil {
		return nil
	}
`,
	},
	{
		name: "the sweep is off", file: "sweep.go",
		old: `	now := time.Now()
	if job.Cleaning`,
		new: `	now := time.Now()
	if now.Unix() > 0 {
		return nil
	}
	if job.Cleaning`,
	},
	{
		name: "a job completes without looking at its epoch", seed: 13, file: "complete.go",
		old: ` || j.Epoch != job.Epoch {`,
		new: ` {`,
	},
	{
		name: "a range is enqueued again under its old name", seed: 4, file: "sweep.go",
		old: `		r.Generation++
		r.Lost = true`,
		new: `		r.Lost = true`,
	},
	{
		name: "records are not named by the incarnation of their job", seed: 13, file: "internal/record/range.go",
		old: `	h := sha256.Sum256([]byte(job.String()))
	return hex.EncodeToString(h[:4]) + "." + job.String() + "."`,
		new: `	h := sha256.Sum256([]byte(job.ID))
	return hex.EncodeToString(h[:4]) + "." + job.ID + "."`,
	},
	{
		name: "nobody looks at the incarnation of a job", seed: 4, file: "internal/record/jobrecord.go",
		old: `	if r.Incarnation != "" && r.Incarnation`,
		new: `	if r.Incarnation == "-" && r.Incarnation`,
	},
	{
		name: "the next job has the idempotency keys of the last one", seed: 4, file: "entity.go",
		old: `e.attempt.job.String() + "\x00"`,
		new: `e.attempt.job.ID + "\x00"`,
	},
	{
		name: "a clean-up adds up while pages may be under way", file: "cleanup.go",
		old: `		if len(open) == 0 {
			break
		}`,
		new: `		if len(open) >= 0 {
			break
		}`,
	},
	{
		name: "a page is committed though its range was taken away", seed: 3, file: "fence.go",
		old: `	case r.State != record.Pending || r.Generation`,
		new: `	case r.State != record.Pending && r.State != record.Abandoned || r.Generation`,
	},
	{
		name: "records that expire are written as they were read", seed: 17, file: "cleanup.go",
		old: `	return e.transact(ctx, func(tx *datastore.Transaction) error {
		all, dst`,
		new: `	for _, r := range batch {
		r.Expires = expires
	}
	if len(batch) > 0 {
		_, err := e.client.PutMulti(ctx, keys, batch)
		return err
	}
	return e.transact(ctx, func(tx *datastore.Transaction) error {
		all, dst`,
	},
	{
		name: "the deaths of a finalizer do not count", seed: 5, file: "finalize.go",
		old: `n >= MaxAttempts {`,
		new: `n >= 1000*MaxAttempts {`,
	},
	{
		name: "finalizers do not pass the gate", test: "TestStorm", file: "finalize.go",
		old: `	place, err := e.gate.enter(ctx, solo)`,
		new: `	place, err := newGate().enter(ctx, solo)`,
	},
	{
		name: "a finalizer is never solo", test: "TestStorm", file: "finalize.go",
		old: `	place, err := e.gate.enter(ctx, solo)`,
		new: `	place, err := e.gate.enter(ctx, false)
	place.alone = solo`,
	},
	{
		name: "functions that were left behind are no company", seed: 8, test: "TestStorm", file: "gate.go",
		old: `	p.alone = solo && g.strays.Load() == 0`,
		new: `	p.alone = solo`,
	},
	{
		name: "counters depend on the order in which they are added up", seed: 4, file: "internal/tally/counters.go",
		old: `	sum, known := t.sums[name]
`,
		new: `	if _, known := t.sums[name]; !known && len(t.sums) >= 100 {
		name = "(others)"
	}
	sum, known := t.sums[name]
`,
	},
	{
		name: "a job succeeds whatever its records say", seed: 5, file: "complete.go",
		old: `cmp.Or(l.Err(), l.Lost)`,
		new: `cmp.Or(l.Lost)`,
	},
	{
		name: "a page is read before its transaction, and written blindly", seed: 14, file: "processing.go",
		old: `		missing, err := lookup(tx.GetMulti, keys, append([]any{r}, into(entities[known:])...))
`,
		new: `		missing, err := lookup(func(keys []*datastore.Key, dst any) error {
			return w.engine.client.GetMulti(context.Background(), keys, dst)
		}, keys, append([]any{r}, into(entities[known:])...))
		if err == nil {
			*r = record.Range{}
			err = tx.Get(w.record.Key(), r)
		}
`,
	},
}

// TestMutations breaks the protocol in every way that it guards against, and has
// the simulation find that, or the test that it names.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out mutations of the protocol")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			source, err := os.ReadFile(filepath.Join(mapperDir, m.file))
			if err != nil {
				t.Fatal(err)
			}
			if n := strings.Count(string(source), m.old); n != 1 {
				t.Fatalf("%s has the text to replace %d times", m.file, n)
			}
			dir, err := filepath.Abs(mapperDir)
			if err != nil {
				t.Fatal(err)
			}
			broken, overlay := filepath.Join(t.TempDir(), filepath.Base(m.file)), filepath.Join(t.TempDir(), "overlay.json")
			replaced, err := json.Marshal(map[string]any{"Replace": map[string]string{filepath.Join(dir, m.file): broken}})
			if err != nil {
				t.Fatal(err)
			}
			for path, content := range map[string][]byte{
				broken: []byte(strings.Replace(string(source), m.old, m.new, 1)), overlay: replaced,
			} {
				if err := os.WriteFile(path, content, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if m.test == "" {
				m.test = "TestSimulation"
			}
			binary := filepath.Join(t.TempDir(), "broken.test")
			if out, err := exec.Command("go", "test", "-c", "-o", binary, "-overlay", overlay, "-vet=off", "-ldflags=-s -w", mapperDir).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%.2000s", err, out)
			}
			m.try(t, binary)
		})
	}
}

// most is how many seeds are tried. Of a hundred each mutation is found by three or more, and most
// by many; as goroutines take turns in another order each time, it is not always the same ones.
const most = 200

// try runs the test that is to find a mutation on seeds, until one does.
func (m mutation) try(t *testing.T, binary string) {
	run := exec.Command(binary, "-test.failfast", "-test.run", m.test+"$", "-test.timeout", "1h", "-seeds", strconv.Itoa(most), "-seed", strconv.Itoa(cmp.Or(m.seed, 2)))
	run.Dir, run.Env = mapperDir, append(os.Environ(), "GOMAXPROCS=1") // another one runs beside it
	out, err := run.CombinedOutput()
	found := regexp.MustCompile(`(?s)--- FAIL: ` + m.test + `/seed_(\d+).*?\n(\s+\w+_test\.go:[^\n]*)`).FindSubmatch(out)
	switch {
	case found != nil:
		t.Logf("caught by seed %s: %.300s", found[1], strings.TrimSpace(string(found[2])))
	case err != nil:
		t.Fatalf("%v\n%.2000s", err, out)
	default:
		t.Error("not caught")
	}
}
