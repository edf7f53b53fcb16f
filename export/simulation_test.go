package export_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

var errLost = errors.New("the connection was lost")

// TestSimulation starts, aborts, discards, resumes, cleans up and restarts exports, under the same
// and other IDs, in one folder. Some are held, and operators count and write their files, also with
// different numbers at once. Entities fail at some times, and are retried; some seeds allow
// failures. Calls of the database, the queue and the bucket fail, are slow, or take effect late,
// some after everything else. Records are deleted after their retention, and operators continue
// after that. The oldest manifests are deleted, as by a lifecycle rule of the bucket.
//
// All other manifests that a caller got must stay true. Readers must get the manifest of the last
// export that has succeeded.
func TestSimulation(t *testing.T) {
	testflag.Simulate(t, 2, 1, simulate)
}

// simOrders is the number of entities.
const simOrders = 60

// A simulation is one run of TestSimulation, with one seed.
type simulation struct {
	*testing.T
	seed   uint64
	store  *testbucket.Bucket
	clean  *blob.Bucket // the bucket without faults
	export *export.Export[mapper.NoParams]
	world  *mappertest.Env

	mu       sync.Mutex
	rng      *rand.Rand
	calm     bool
	late     []func() error // effects of calls that take place after everything else
	lost     float64        // share of the bucket's calls that are lost; below, the shares that are slow or stalled
	slow     float64
	stalled  float64
	hasty    int                         // how many of 20 actions of operators are aborts
	allow    bool                        // Options.AllowFailures
	period   time.Duration               // the length of a period; entities fail in every second period
	promised map[string]*export.Manifest // the manifests that callers got, by run
	deleted  map[string]bool             // the runs whose manifests were deleted
	given    int
	ids      map[string]bool // IDs of exports that were started
	missing  int             // number of entities that are in no file of a manifest that a caller got
	pending  sync.WaitGroup  // waits for calls that take effect late
}

type stallKey struct{}

// longestStall is how long an operator's process may stop.
const longestStall = 12 * time.Hour

func simulate(t *testing.T, seed uint64) {
	s := &simulation{seed: seed, store: testbucket.New(), rng: rand.New(rand.NewPCG(seed, 1)), calm: true,
		promised: make(map[string]*export.Manifest), ids: make(map[string]bool),
		deleted: make(map[string]bool)}
	square := func() float64 { return s.rng.Float64() * s.rng.Float64() }
	s.lost, s.slow, s.stalled, s.hasty = 0.1*square(), 0.2*square(), 0.05*s.rng.Float64(), s.rng.IntN(4)
	s.clean = s.store.Open()
	s.store.Chunk = s.rng.IntN(2) * (1 + s.rng.IntN(1000))
	s.store.Hook, s.store.Lag = s.call, s.lag
	s.allow, s.period = s.rng.IntN(2) == 0, time.Duration(1+s.rng.IntN(40))*time.Minute
	options := &export.Options{Format: export.JSONLines, Files: 1 + s.rng.IntN(4), AllowFailures: s.allow}
	s.export = must(export.New("orders", s.store.Open(), func(_ context.Context, e *mapper.Entity[order],
		_ mapper.NoParams) (line, error) {
		if mayFail(e.Value.N) && !s.isCalm() && time.Now().Unix()/int64(s.period.Seconds())%2 == 0 {
			return line{}, mapper.Permanent(errors.New("not now"))
		}
		return line(e.Value), nil
	}, options))
	mappertest.Run(t, s.export.Mappers(), &mappertest.Options{Seed: seed, Workers: 2 + s.rng.IntN(10)},
		func(t *testing.T, w *mappertest.Env) {
			s.T, s.world = t, w
			s.run()
		})
}

// mayFail reports whether the function may fail on an entity. There are so few such entities that
// the job does not blame the function.
func mayFail(n int64) bool { return n%9 == 4 }

// random returns a number in [0, 1).
func (s *simulation) random() float64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.rng.Float64()
}

func (s *simulation) isCalm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calm
}

// lag returns how old the state is that a listing shows of a blob.
func (s *simulation) lag(string) time.Duration {
	if s.isCalm() || s.random() < 0.7 {
		return 0
	}
	return time.Duration(s.random() * float64(2*time.Minute))
}

// call carries out a call of the bucket, or makes it slow, late or lost.
func (s *simulation) call(c *testbucket.Call) error {
	if s.isCalm() {
		return c.Effect()
	}
	wait := time.Duration(s.random() * float64(20*time.Millisecond))
	switch dice := s.random(); {
	case dice < s.stalled && c.Value(stallKey{}) != nil: // the operator's process stops for a while
		wait = time.Duration(s.random() * float64(longestStall))
	case dice < s.slow:
		wait = time.Duration(s.random() * s.random() * float64(time.Minute))
	}
	select {
	case <-c.Done():
		if c.Op == "write" || c.Op == "delete" {
			s.later(c)
		}
		return c.Err()
	case <-time.After(wait):
	}
	if s.random() >= s.lost {
		return c.Effect()
	}
	switch dice := s.random(); {
	case dice < 0.3:
		_ = c.Effect() // the call takes effect, and its answer is lost
	case dice < 0.7 && (c.Op == "write" || c.Op == "delete"):
		s.later(c)
	}
	return errLost
}

// later lets a call take effect after a while, or after everything else.
func (s *simulation) later(c *testbucket.Call) {
	if s.random() < 0.3 {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.late = append(s.late, c.Effect)
		return
	}
	wait := time.Duration(s.random() * s.random() * float64(3*time.Hour))
	s.pending.Go(func() {
		time.Sleep(wait)
		_ = c.Effect()
	})
}

// promise records a manifest that a caller got. It checks that an earlier caller got the same one
// for this run.
func (s *simulation) promise(m *export.Manifest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given++
	if before := s.promised[m.Run]; before != nil && fmt.Sprint(before.Files) != fmt.Sprint(m.Files) {
		s.Errorf("the manifest of run %s was %+v, and is %+v", m.Run, before, m)
	}
	if !s.deleted[m.Run] {
		s.promised[m.Run] = m
	}
}

// succeeded returns the manifests of all runs that have succeeded, except deleted ones. The last
// one comes first.
func (s *simulation) succeeded() (all []*export.Manifest) {
	s.Helper()
	for name, text := range s.store.Now() {
		if run := ofRun.FindStringSubmatch(name); run == nil || run[2] != "manifest.json" {
			continue
		}
		m := new(export.Manifest)
		if err := json.Unmarshal(text, m); err != nil {
			s.Errorf("%s: %v", name, err)
		} else if !m.Discarded {
			all = append(all, m)
		}
	}
	slices.SortFunc(all, func(a, b *export.Manifest) int {
		return cmp.Or(b.Ended.Compare(a.Ended), cmp.Compare(b.Run, a.Run))
	})
	return all
}

// expire deletes the oldest manifest, as a lifecycle rule of the bucket does.
func (s *simulation) expire() {
	all := s.succeeded()
	if len(all) == 0 {
		return
	}
	oldest := all[len(all)-1]
	s.mu.Lock()
	s.deleted[oldest.Run] = true
	delete(s.promised, oldest.Run)
	s.mu.Unlock()
	s.store.Put(folder+"/run-"+oldest.Run+"/manifest.json", nil)
	first := new(export.Manifest)
	if json.Unmarshal(s.store.Get(folder+"/manifest.json"), first) == nil && first.Run == oldest.Run &&
		s.random() < 0.7 {
		s.store.Put(folder+"/manifest.json", nil)
	}
}

// checkRead checks that readers get the manifest of the last export that has succeeded and was not
// deleted.
func (s *simulation) checkRead() {
	s.Helper()
	all := s.succeeded()
	m, err := export.ReadManifest(s.Context(), s.clean, folder)
	switch {
	case len(all) == 0:
		if gcerrors.Code(err) != gcerrors.NotFound {
			s.Errorf("no export has succeeded, and the manifest in the folder is %+v, %v", m, err)
		}
	case err != nil || m.Run != all[0].Run:
		s.Errorf("the manifest in the folder is %+v, %v, and the last one is %+v", m, err, all[0])
	}
	for _, m := range all { // also delete manifests that no caller has read yet
		s.promise(m)
	}
}

func (s *simulation) run() {
	for n := range int64(simOrders) {
		o := order(lineOf(n))
		if _, err := s.world.Client.Put(s.Context(), datastore.NameKey("Order", fmt.Sprint(n*7919%10007), nil),
			&o); err != nil {
			s.Fatal(err)
		}
	}
	s.store.Put(folder+"/of somebody else", []byte("x"))
	s.store.Put("of/other.json", []byte("x"))
	s.phase()
	if s.rng.IntN(3) == 0 { // let the retention of records pass
		time.Sleep(mapper.MinRetain + 24*time.Hour)
		s.phase()
	}
	s.pending.Wait()
	s.end()
}

// phase lets operators act for a while, while faults are injected.
func (s *simulation) phase() {
	s.setCalm(false)
	s.world.ResumeFaults()
	until := time.Now().Add(time.Duration(30+s.rng.IntN(90)) * time.Minute)
	var operators sync.WaitGroup
	for i := range 2 + s.rng.IntN(3) {
		rng := rand.New(rand.NewPCG(s.seed, uint64(i+2)))
		operators.Go(func() { s.operate(rng, until) })
	}
	operators.Go(func() {
		for time.Now().Before(until) {
			time.Sleep(time.Duration(s.random() * float64(10*time.Minute)))
			if s.random() < 0.1 {
				s.expire()
			}
			if m, err := export.ReadManifest(s.Context(), s.clean, folder); err == nil {
				s.promise(m)
			}
		}
	})
	operators.Wait()
	s.world.PauseFaults()
	s.setCalm(true)
}

func (s *simulation) setCalm(calm bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calm = calm
}

// operate is the loop of an operator, who acts now and then until a time.
func (s *simulation) operate(rng *rand.Rand, until time.Time) {
	pause := time.Duration((0.1 + rng.Float64()*rng.Float64()) * float64(20*time.Minute))
	for time.Now().Before(until) {
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(pause)))
		id := fmt.Sprint("export-", rng.IntN(3), "-", int(time.Until(until)/time.Hour))
		patience := longestStall + time.Hour // limits the wait, because nobody may resume a paused job
		if rng.IntN(4) == 0 {                // the operator gives up soon, or the process ends
			patience = time.Duration(rng.Float64() * float64(time.Minute))
		}
		ctx, cancel := context.WithTimeout(context.WithValue(s.Context(), stallKey{}, true), patience)
		s.act(ctx, rng, id)
		cancel()
	}
}

func (s *simulation) act(ctx context.Context, rng *rand.Rand, id string) {
	run, err := s.export.Find(ctx, s.world.Engine, id)
	if err != nil {
		s.mu.Lock()
		s.ids[id] = true
		s.mu.Unlock()
		o := &export.StartOptions{StartOptions: mapper.StartOptions{ID: id, PageSize: 8 + rng.IntN(30)},
			Folder: folder, Hold: rng.IntN(3) == 0}
		if rng.IntN(2) == 0 {
			o.Retain = mapper.MinRetain
		}
		run, err = s.export.Start(ctx, s.world.Engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, o)
		if err != nil && strings.Contains(err.Error(), "is there still") {
			for _, suffix := range []string{"-join", "-delete"} {
				job := s.world.Engine.Job(id + suffix)
				_ = job.Abort(ctx)
				_ = job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
			}
		}
		if err != nil {
			return
		}
	}
	time.Sleep(time.Duration(rng.Float64() * rng.Float64() * float64(time.Minute)))
	job := run.Jobs()[rng.IntN(3)]
	switch dice := rng.IntN(24); {
	case dice >= 22: // returns an error if the export is not held
		n, err := s.export.Count(ctx, run)
		if err == nil {
			_ = s.export.Write(ctx, run, []int{0, n, 1 + rng.IntN(3)}[rng.IntN(3)], mapper.NoParams{})
		}
	case dice >= 20:
		_ = s.export.Write(ctx, run, rng.IntN(4), mapper.NoParams{})
	case dice < s.hasty:
		_ = job.Abort(ctx)
		time.Sleep(time.Duration(rng.Float64() * rng.Float64() * float64(time.Minute)))
		_ = run.Discard(ctx)
	case dice < 4:
		_ = run.Discard(ctx)
	case dice < 7:
		_ = job.Resume(ctx)
	case dice < 8:
		_ = job.Pause(ctx)
	case dice < 9:
		_ = job.Retry(ctx, nil)
	case dice < 10: // deletes the jobs, so that the ID can be used again
		for _, job := range run.Jobs() {
			_ = job.CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
		}
	default:
		ctx, cancel := context.WithTimeout(ctx, time.Duration(rng.Float64()*float64(3*time.Minute)))
		defer cancel()
		if m, err := run.Wait(ctx); err == nil {
			s.promise(m)
		}
	}
}

// end stops the faults, brings all exports to their end, lets late calls take effect, and checks
// the result.
func (s *simulation) end() {
	time.Sleep(24 * time.Hour) // until all work of the earlier phases has ended
	succeeded, discarded := 0, 0
	settle := func() {
		s.Helper()
		for id := range s.ids {
			run, err := s.export.Find(s.Context(), s.world.Engine, id)
			if err != nil {
				continue
			}
			for _, job := range run.Jobs() {
				_ = job.Abort(s.Context())
			}
			time.Sleep(time.Minute)
			switch err := run.Discard(s.Context()); {
			case err == nil:
				discarded++
			case errors.Is(err, mapper.ErrWrongState) && strings.Contains(err.Error(), "has succeeded"):
				succeeded++
			default:
				s.Errorf("discard %s at the end: %v", id, err)
			}
		}
	}
	settle()
	s.mu.Lock()
	late := s.late
	s.late = nil
	s.rng.Shuffle(len(late), func(i, j int) { late[i], late[j] = late[j], late[i] })
	s.mu.Unlock()
	for _, effect := range late {
		_ = effect()
	}
	settle()
	s.checkRead()
	last, err := startIn(s.T, s.world, s.export, "last", folder)
	if err != nil {
		s.Fatal(err)
	}
	m, err := last.Wait(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	s.promise(m)
	s.checkRead()
	if all := s.succeeded(); all[0].Run != m.Run {
		s.Errorf("the last manifest is %+v, and the last export's %+v", all[0], m)
	}
	for _, m := range s.promised {
		s.checkTrue(m)
	}
	s.checkNames()
	s.Logf("%d exports were given %d times and lack %d entities, of %d IDs at the end %d had succeeded and %d were "+
		"discarded, %d calls were late", len(s.promised), s.given, s.missing, len(s.ids), succeeded/2, discarded/2,
		len(late))
}

// checkTrue checks that a manifest is true: its files must have each entity once, except the ones
// that it counts as failures.
func (s *simulation) checkTrue(m *export.Manifest) {
	s.Helper()
	checkFiles(s.T, s.store, folder, m)
	seen := make(map[int64]bool)
	for _, f := range m.Files {
		for text := range bytes.Lines(s.store.Get(folder + "/" + f.Name)) {
			var l line
			if err := json.Unmarshal(text, &l); err != nil || l.Name != lineOf(l.N).Name {
				s.Errorf("%s of export %s has the record %q: %v", f.Name, m.Export, text, err)
			}
			seen[l.N] = true
		}
	}
	missing := 0
	for n := range int64(simOrders) {
		if !seen[n] {
			if missing++; !s.allow || !mayFail(n) {
				s.Errorf("entity %d is in no file of export %s: %+v", n, m.Export, m)
			}
		}
	}
	s.missing += missing
	if len(seen)+missing != simOrders || m.Records != int64(len(seen)) || m.Failures != int64(missing) {
		s.Errorf("the files of export %s have %d records, and lack %d entities: %+v", m.Export, len(seen), missing, m)
	}
}

var ofRun = regexp.MustCompile(`^of/today/run-([0-9a-z]+)/(.*)$`)

// checkNames checks that the bucket has only files of runs that have succeeded, and marks of
// discarded runs. It also checks that each blob was written only once.
func (s *simulation) checkNames() {
	s.Helper()
	named := map[string]bool{folder + "/of somebody else": true, "of/other.json": true}
	for _, m := range s.promised {
		for _, f := range m.Files {
			named[folder+"/"+f.Name] = true
		}
	}
	for name := range s.store.Now() {
		run := ofRun.FindStringSubmatch(name)
		switch {
		case named[name], name == folder+"/manifest.json":
		case run == nil:
			s.Errorf("%s is there", name)
		case run[2] == "manifest.json", run[2] == "_SUCCESS":
		default:
			if s.promised[run[1]] != nil {
				s.Logf("%s came late", name)
			}
		}
	}
	for name := range named {
		if s.store.Get(name) == nil {
			s.Errorf("%s is not there any more", name)
		}
	}
	for _, name := range s.store.Overwritten() {
		if run := ofRun.FindStringSubmatch(name); run == nil || named[name] {
			s.Errorf("%s was written over", name)
		}
	}
}
