package ledger

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"maps"
	"slices"
	"sync"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A diagnosis finds out which records are missing or do not fit, of a job for which it is known
// that some are or don't. It reads all of them twice: first to see in which buckets, by hash,
// something does not cancel out, and then to look at what is in some of these buckets. So its
// memory does not grow with the records, but for a 65,536th part of them for each problem.
type diagnosis struct {
	ids, bounds balance

	found  map[string]bool   // by ID: records,
	made   map[string]string // and who has made the range
	places map[string]*place // by hash: where ranges begin and end
}

// A place is where ranges begin and end: one of each, but at the ends of the query.
type place struct {
	at           *keyspace.Position // nil: an end of the query
	begins, ends []string           // IDs
}

// diagnose says what is wrong with the records of a job.
func diagnose(ctx context.Context, st Records, job *record.Job, l *Ledger) error {
	d := newDiagnosis(job)
	var turn sync.Mutex
	each := func(f func(*record.Range)) error {
		return st.EachRecord(ctx, job.Ref(), func(r *record.Range) error {
			turn.Lock()
			defer turn.Unlock()
			f(r)
			return nil
		})
	}
	if err := each(d.weigh); err != nil {
		return err
	}
	d.choose(job)
	if err := each(d.look); err != nil {
		return err
	}
	d.report(l)
	return nil
}

// newDiagnosis returns a diagnosis that has the job's part: its root, and the ends of its query.
func newDiagnosis(job *record.Job) *diagnosis {
	d := &diagnosis{found: make(map[string]bool), made: make(map[string]string), places: make(map[string]*place)}
	d.ids.add(job.Root(), 1)
	d.bounds.add(boundaryHash(nil, true), -1)
	d.bounds.add(boundaryHash(nil, false), 1)
	return d
}

// choose chooses what is looked at.
func (d *diagnosis) choose(job *record.Job) {
	d.ids.choose()
	d.bounds.choose()
	if d.ids.chosen(job.Root()) {
		d.made[job.Root()] = "the job"
	}
}

// weigh has what a record has come and go.
func (d *diagnosis) weigh(r *record.Range) {
	d.ids.add(r.ID, -1)
	for i := range countable(r) {
		d.ids.add(record.RangeID(r.ID, i), 1)
	}
	if !r.Alone {
		d.bounds.add(boundaryHash(r.Start, true), 1)
		d.bounds.add(boundaryHash(r.End, false), -1)
	}
}

// look notes what a record has in the buckets that do not cancel out.
func (d *diagnosis) look(r *record.Range) {
	if d.ids.chosen(r.ID) {
		d.found[r.ID] = true
	}
	for i := range countable(r) {
		if id := record.RangeID(r.ID, i); d.ids.chosen(id) {
			d.made[id] = "range " + r.ID
		}
	}
	if r.Alone {
		return
	}
	if hash := boundaryHash(r.Start, true); d.bounds.chosen(hash) {
		p := d.placeAt(hash, r.Start)
		p.begins = append(p.begins, r.ID)
	}
	if hash := boundaryHash(r.End, false); d.bounds.chosen(hash) {
		p := d.placeAt(hash, r.End)
		p.ends = append(p.ends, r.ID)
	}
}

func (d *diagnosis) placeAt(hash string, at *keyspace.Position) *place {
	if d.places[hash] == nil {
		d.places[hash] = &place{at: at}
	}
	return d.places[hash]
}

// report lists what does not fit.
func (d *diagnosis) report(l *Ledger) {
	for _, id := range slices.Sorted(maps.Keys(d.made)) {
		if !d.found[id] {
			l.Problem("range %s of %s is missing", id, d.made[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(d.found)) {
		if d.made[id] == "" {
			l.Problem("range %s has no parent", id)
		}
	}
	places := slices.SortedFunc(maps.Values(d.places), func(a, b *place) int {
		if a.at == nil || b.at == nil {
			return keyspace.Present(a.at != nil) - keyspace.Present(b.at != nil)
		}
		return keyspace.Compare(a.at, b.at)
	})
	for _, p := range places {
		slices.Sort(p.begins)
		slices.Sort(p.ends)
		switch {
		case p.at == nil && len(p.begins)+len(p.ends) != 1:
			l.Problem("the query begins or ends with more than one range: %q", append(p.begins, p.ends...))
		case p.at != nil && len(p.begins) != len(p.ends):
			l.Problem("at %v end the ranges %q, and begin the ranges %q", p.at, p.ends, p.begins)
		}
	}
}

// A balance adds up, by buckets, what comes and goes. Where each thing goes as often as it comes a
// bucket is 0.
type balance struct {
	buckets [1 << 16]uint64
	wrong   []uint16 // some of those that are not
}

// hashOf returns the bucket of something, and what it counts there.
func hashOf(what string) (bucket uint16, value uint64) {
	h := sha256.Sum256([]byte(what))
	return binary.BigEndian.Uint16(h[:]), binary.BigEndian.Uint64(h[2:])
}

// add has something come n times.
func (b *balance) add(what string, n int64) {
	bucket, value := hashOf(what)
	b.buckets[bucket] += uint64(n) * value
}

// choose chooses buckets to look at: as many as there can be problems.
func (b *balance) choose() {
	for i, sum := range b.buckets {
		if sum != 0 && len(b.wrong) < MaxProblems {
			b.wrong = append(b.wrong, uint16(i))
		}
	}
}

// chosen reports whether something is in one of these buckets.
func (b *balance) chosen(what string) bool {
	bucket, _ := hashOf(what)
	_, found := slices.BinarySearch(b.wrong, bucket)
	return found
}
