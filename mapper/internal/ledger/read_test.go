package ledger

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A shelf implements Records for the records of one job. It counts its calls, from 1.
type shelf struct {
	job    *record.Job
	ranges []*record.Range
	calls  int
	fails  int // number of the call that fails; 0: none
	cleans int // number of the call before which the job is cleaned up; 0: none
}

var errShelf = errors.New("the database is down")

func (s *shelf) call() error {
	if s.calls++; s.calls == s.cleans {
		s.job.Cleaned = true
	}
	if s.calls == s.fails {
		return errShelf
	}
	return nil
}

func (s *shelf) LoadJob(context.Context, record.Ref) (*record.Job, error) {
	err := s.call()
	j := *s.job
	return &j, err
}

func (s *shelf) Fold(context.Context, *record.Job) (*Ledger, error) {
	if err := s.call(); err != nil {
		return nil, err
	}
	l := new(Ledger)
	for _, r := range s.ranges {
		if err := l.Add(r); err != nil {
			return nil, err
		}
	}
	l.Close(s.job)
	return l, nil
}

func (s *shelf) EachRecord(_ context.Context, _ record.Ref, f func(*record.Range) error) error {
	if err := s.call(); err != nil {
		return err
	}
	for _, r := range s.ranges {
		if err := f(r); err != nil {
			return err
		}
	}
	return nil
}

// TestReadsOfRecords checks how often OfRecords reads a job's records. If a read fails, or a
// clean-up runs at the same time, it must return an error and no ledger.
func TestReadsOfRecords(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		reads := 3 // the job's record, the ranges' records, and the job's record again
		if damaged {
			reads = 5 // with a problem, the ranges' records are read twice more
		}
		for _, s := range []shelf{{}, {cleans: 1}, {cleans: 2}, {cleans: reads}, {fails: 1}, {fails: 2}, {fails: 3},
			{fails: 4}, {fails: 5}} {
			if s.fails > reads {
				continue
			}
			s.job, s.ranges = family(t)
			if damaged {
				s.ranges = s.ranges[:2]
			}
			job, l, err := OfRecords(t.Context(), &s, s.job.Ref())
			want := error(nil)
			switch {
			case s.fails > 0:
				want = errShelf
			case s.cleans > 0:
				want = record.ErrState
			}
			if !errors.Is(err, want) || (want == nil) != (err == nil) || (job == nil) != (err != nil) ||
				(l == nil) != (err != nil) {
				t.Errorf("damaged %v, read %d fails, cleaned up before %d: %v", damaged, s.fails, s.cleans, err)
			}
			last := reads
			if s.fails > 0 {
				last = s.fails
			} else if s.cleans == 1 {
				last = 1
			}
			if s.calls != last {
				t.Errorf("damaged %v, read %d fails, cleaned up before %d: %d reads, want %d", damaged, s.fails,
					s.cleans, s.calls, last)
			}
			if err == nil && (len(l.Problems) > 0) != damaged {
				t.Errorf("damaged %v: %q", damaged, l.Problems)
			}
		}
	}
}

// TestEndIsCompared checks that a problem is reported if the records add up to other totals than
// the job's record has.
func TestEndIsCompared(t *testing.T) {
	s := new(shelf)
	s.job, s.ranges = family(t)
	s.job.Totals = nil
	if _, l, err := OfRecords(t.Context(), s, s.job.Ref()); err != nil ||
		!strings.Contains(strings.Join(l.Problems, "\n"), "the totals of the job") {
		t.Errorf("%+v, %v", l, err)
	}
}

// A lister implements Entities. Its maps have the number and the digest of the keys in each range
// of the database, by the end of the range.
type lister struct {
	n    map[string]int64
	keys map[string]string
	at   time.Time
	err  error
}

func (s *lister) KeysDigest(_ context.Context, q query.Query, _, end *keyspace.Position) (int64, []byte, error) {
	s.at = q.ReadTime
	return s.n[fmt.Sprint(end)], []byte(s.keys[fmt.Sprint(end)]), s.err
}

// TestComparison checks which ranges are reported as different from the database: those with
// another number of entities, or with other keys.
func TestComparison(t *testing.T) {
	j := &record.Job{ID: "j", Query: []byte(`{"kind":"K"}`)}
	of := func(end int64) *record.Range {
		return &record.Range{ID: fmt.Sprint("r", end), State: record.Done, End: at(end), Entities: 10,
			Keys: []byte("k")}
	}
	pending, alone := of(1), of(2)
	pending.State, alone.Alone = record.Pending, true
	s := &shelf{job: j, ranges: []*record.Range{pending, alone, of(3), of(4), of(5), of(6)}}
	src := &lister{
		n: map[string]int64{fmt.Sprint(at(3)): 10, fmt.Sprint(at(4)): 9, fmt.Sprint(at(5)): 11,
			fmt.Sprint(at(6)): 10},
		keys: map[string]string{fmt.Sprint(at(3)): "k", fmt.Sprint(at(4)): "k", fmt.Sprint(at(5)): "k"},
	}
	found, err := OfEntities(t.Context(), s, src, j, noon)
	if err != nil || found.Compared != 4 || found.Different != 3 || len(found.Differences) != 3 || !src.at.Equal(noon) {
		t.Errorf("%+v, %v, at %v", found, err, src.at)
	}
	for i, id := range []string{"r4", "r5", "r6"} {
		if i < len(found.Differences) && !strings.HasPrefix(found.Differences[i], "range "+id+",") {
			t.Errorf("%q is not of %s", found.Differences[i], id)
		}
	}
	src.err = errShelf
	if _, err := OfEntities(t.Context(), s, src, j, time.Time{}); !errors.Is(err, errShelf) || !src.at.IsZero() {
		t.Errorf("%v, at %v", err, src.at)
	}
	src.err, s.ranges = nil, slices.Repeat([]*record.Range{of(4)}, MaxProblems+3)
	if found, err := OfEntities(t.Context(), s, src, j, noon); err != nil || found.Different != MaxProblems+3 ||
		len(found.Differences) != MaxProblems {
		t.Errorf("%d differ, and %d are described, %v", found.Different, len(found.Differences), err)
	}
	j.Query = []byte("{")
	if _, err := OfEntities(t.Context(), s, src, j, noon); !errors.Is(err, query.ErrNewer) {
		t.Errorf("a query that can't be read: %v", err)
	}
}

// TestSoundRecords checks that a ledger reports no problem in the records of a running job.
func TestSoundRecords(t *testing.T) {
	for name, change := range map[string]func(*record.Range){
		"a pending range":               func(r *record.Range) {},
		"a range of nothing":            func(r *record.Range) { r.End = r.Start },
		"as many children as there may": func(r *record.Range) { r.Children = maxChildren },
		"a failure": func(r *record.Range) {
			r.Alone = true
			r.Fail(errors.New("no"), noon)
		},
	} {
		r := &record.Range{Job: "j", Incarnation: "i", ID: record.RangeID("x", 1), Open: "j", State: record.Pending,
			Start: at(1), End: at(2)}
		change(r)
		l := new(Ledger)
		if l.check(r); len(l.Problems) > 0 {
			t.Errorf("%s: %q", name, l.Problems)
		}
		if n := countable(r); n != r.Children {
			t.Errorf("%s: %d of %d children are counted", name, n, r.Children)
		}
	}
}

// TestPendingTiles checks the ledger's numbers of tiles, pending tiles, and ranges of single
// entities.
func TestPendingTiles(t *testing.T) {
	l := new(Ledger)
	for _, r := range []*record.Range{{State: record.Pending}, {State: record.Done}, {State: record.Done},
		{State: record.Pending, Alone: true, Start: at(1)}} {
		if err := l.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	if l.Tiles != 3 || l.PendingTiles != 1 || l.Alone != 1 {
		t.Errorf("%d tiles, %d pending, %d alone", l.Tiles, l.PendingTiles, l.Alone)
	}
}

// TestEndWithoutCounters checks that a job does not succeed if its counters are lost.
func TestEndWithoutCounters(t *testing.T) {
	j, all := family(t)
	l := ledgerOf(t, j, all)
	l.Lost = tally.ErrTooMany
	if l.CheckEnd(j); !strings.Contains(strings.Join(l.Problems, "\n"), tally.ErrTooMany.Error()) {
		t.Errorf("%q", l.Problems)
	}
}
