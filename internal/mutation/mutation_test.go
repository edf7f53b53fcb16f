// Package mutation_test breaks the protocol of package mapper, to see that its
// simulation finds that. It is apart from that package because it takes long.
package mutation_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const mapperDir = "../../mapper"

// A mutation breaks the protocol: it replaces text in a file of package mapper.
type mutation struct {
	name, file, old, new string
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
		name: "a job completes without looking at its epoch", file: "complete.go",
		old: ` || j.Epoch != job.Epoch {`,
		new: ` {`,
	},
	{
		name: "a range is enqueued again under its old name", file: "sweep.go",
		old: `		r.Generation++
		r.Lost = true`,
		new: `		r.Lost = true`,
	},
	{
		name: "a page is read before its transaction, and written blindly", file: "processing.go",
		old: `		missing, err := lookup(tx.GetMulti, keys, append([]any{r}, into(entities[known:])...))
`,
		new: `		missing, err := lookup(func(keys []*datastore.Key, dst any) error {
			return w.engine.client.GetMulti(context.Background(), keys, dst)
		}, keys, append([]any{r}, into(entities[known:])...))
		if err == nil {
			*r = rangeRecord{}
			err = recordError(tx.Get(w.record.key(), r))
		}
`,
	},
}

// TestMutations breaks the protocol in every way that it guards against, and has
// the simulation find that, within a hundred seeds.
func TestMutations(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves out mutations of the protocol")
	}
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) {
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
			broken, overlay := filepath.Join(t.TempDir(), m.file), filepath.Join(t.TempDir(), "overlay.json")
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
			out, err := exec.Command("go", "test", "-overlay", overlay, "-vet=off", "-failfast", "-run", "TestSimulation", mapperDir,
				"-args", "-seeds", "100", "-seed", "2").CombinedOutput()
			caught := regexp.MustCompile(`(?s)--- FAIL: TestSimulation/seed_(\d+).*?\n(\s+\w+_test\.go:[^\n]*)`).FindSubmatch(out)
			switch {
			case caught != nil:
				t.Logf("caught by seed %s: %.300s", caught[1], strings.TrimSpace(string(caught[2])))
			case err != nil:
				t.Fatalf("%v\n%.2000s", err, out)
			default:
				t.Error("not caught")
			}
		})
	}
}
