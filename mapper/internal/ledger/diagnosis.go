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

// A diagnosis finds out which records of a job are missing or wrong, after the ledger has found
// that some are. It reads all records twice. In the first reading, it adds up hashes in 65,536
// buckets. If the sum of a bucket is not 0, a record in it is missing or wrong. In the second
// reading, it looks only at the records in up to 20 of these buckets.
//
// So its memory does not grow with the number of records, except for the records in these buckets.
type diagnosis struct {
	ids, bounds balance

	found map[string]bool // IDs of the records in the chosen buckets
	// The keys are the IDs of ranges in these buckets, according to their parents' records. Each
	// value names the parent.
	made   map[string]string
	places map[string]*place // places where ranges start or end, by hash
}

// A place is a position where ranges start or end. If the records are right, exactly one range
// starts there and one ends there. At the start of the query no range ends, and at the end of the
// query none starts.
type place struct {
	at           *keyspace.Position // the position; nil: the start or the end of the query
	begins, ends []string           // IDs of the ranges that start at the position, and that end at it
}

// diagnose finds the records that are missing or wrong, and adds a text about each to the ledger's
// problems.
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

// newDiagnosis returns a diagnosis that has read no records. Its buckets already have what the
// job's record says: the ID of the first range, and the start and the end of the query.
func newDiagnosis(job *record.Job) *diagnosis {
	d := &diagnosis{found: make(map[string]bool), made: make(map[string]string), places: make(map[string]*place)}
	d.ids.add(job.Root(), 1)
	d.bounds.add(boundaryHash(nil, true), -1)
	d.bounds.add(boundaryHash(nil, false), 1)
	return d
}

// choose selects some of the buckets whose sums are not 0, for the second reading.
func (d *diagnosis) choose(job *record.Job) {
	d.ids.choose()
	d.bounds.choose()
	if d.ids.chosen(job.Root()) {
		d.made[job.Root()] = "the job"
	}
}

// weigh is the first reading of a record. It hashes the record's ID, its children's IDs, its start
// and its end, and adds these hashes to the sums of the buckets (see diagnosis).
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

// look is the second reading of a record. If the record's ID, a child's ID, its start or its end is
// in a selected bucket, look stores this ID or place in the diagnosis.
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

// report adds a problem to the ledger for each ID and place that does not fit the others.
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
			l.Problem("an end of the query must have one range, and has these: %q", append(p.begins, p.ends...))
		case p.at != nil && len(p.begins) != len(p.ends):
			l.Problem("at %v the ranges %q end, and the ranges %q start", p.at, p.ends, p.begins)
		}
	}
}

// A balance checks that each text, such as the ID of a range, is removed as often as it is added.
// When a text is added, its hash is added to one of the buckets. When it is removed, the hash is
// subtracted. If every added text was removed, all buckets are 0.
type balance struct {
	buckets [1 << 16]uint64
	wrong   []uint16 // numbers of some buckets that are not 0
}

// hashOf returns the number of the bucket for a text, and the value that the text adds to this
// bucket.
func hashOf(what string) (bucket uint16, value uint64) {
	h := sha256.Sum256([]byte(what))
	return binary.BigEndian.Uint16(h[:]), binary.BigEndian.Uint64(h[2:])
}

// add adds a text n times, or removes it -n times if n is negative.
func (b *balance) add(what string, n int64) {
	bucket, value := hashOf(what)
	b.buckets[bucket] += uint64(n) * value
}

// choose selects up to MaxProblems buckets that are not 0.
func (b *balance) choose() {
	for i, sum := range b.buckets {
		if sum != 0 && len(b.wrong) < MaxProblems {
			b.wrong = append(b.wrong, uint16(i))
		}
	}
}

// chosen reports whether a text is in a selected bucket.
func (b *balance) chosen(what string) bool {
	bucket, _ := hashOf(what)
	_, found := slices.BinarySearch(b.wrong, bucket)
	return found
}
