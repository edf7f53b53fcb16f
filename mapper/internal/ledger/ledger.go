package ledger

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Ledger adds up the records of a job's ranges, and checks that they are complete. The records
// may come in any order and in parts. Its memory does not grow with their number, because it
// compares sums of 128-bit hashes:
//
//   - No record is missing, and none is foreign. A record says how many children its range has,
//     which determines their IDs. The sum of the IDs of the root and of all children must equal the
//     sum of the IDs of all records.
//   - The ranges tile the query. One starts with the query, one ends with it, and each of the
//     others starts where another one ends. Then before any position one more range has started
//     than ended, so each position is in one range. The sums of all starts and of all ends must be
//     equal.
//   - A range of a single entity is not part of the tiling. The page that made it has recorded
//     which entity it has. The sums of both must be equal.
//   - A record that is done has a seal: a hash of its contents at the commit of its page.
type Ledger struct {
	Sum
	made, found tally.Sum // sums of range IDs: the IDs of all children, and the IDs in records
	begin, end  tally.Sum // sums of hashes of the positions where ranges start, and where they end
	// sums of hashes of the entities in single-entity ranges: as their pages recorded them, and as
	// their own records say
	meant, single       tally.Sum
	first, last         int64 // numbers of ranges that start where the query starts, and that end where it ends
	Problems            []string
	missed              int   // number of problems that are not in Problems, because it is full
	Tiles, PendingTiles int64 // numbers of ranges that are not single entities: all, and the pending ones
	Alone               int64 // number of ranges that are single entities
}

// MaxProblems is the number of problems that a ledger lists. It only counts further problems.
const MaxProblems = 20

// Problem adds a text that says what is wrong with the records.
func (l *Ledger) Problem(format string, args ...any) {
	if len(l.Problems) == MaxProblems {
		l.missed++
		return
	}
	l.Problems = append(l.Problems, fault.Text(fmt.Errorf(format, args...)))
}

// Add checks a record for itself, and adds it to the sums.
func (l *Ledger) Add(r *record.Range) error {
	l.check(r)
	l.found = l.found.Plus(idNumber(r.ID))
	for i := range countable(r) {
		l.made = l.made.Plus(idNumber(record.RangeID(r.ID, i)))
	}
	if len(r.Single) == record.DigestSize {
		l.meant = l.meant.Plus(tally.SumOf(r.Single))
	}
	if r.Alone {
		l.Alone++
		l.single = l.single.Plus(r.SingleSum())
		return l.Sum.Add(r)
	}
	if r.State != record.Done {
		l.PendingTiles++
	}
	l.Tiles++
	l.boundary(r.Start, &l.begin, &l.first)
	l.boundary(r.End, &l.end, &l.last)
	return l.Sum.Add(r)
}

func (l *Ledger) boundary(p *keyspace.Position, sum *tally.Sum, ends *int64) {
	if p == nil {
		*ends++
		return
	}
	*sum = sum.Plus(boundaryDigest(p).Number())
}

func boundaryDigest(p *keyspace.Position) *record.Digest {
	d := record.NewDigest("position")
	d.Position(p)
	return d
}

// boundaryHash returns a hash of a position where a range starts or ends. It is the same in both
// cases. A nil position stands for the start of the query if the second argument is true, and for
// its end otherwise. These two have different hashes.
func boundaryHash(p *keyspace.Position, begins bool) string {
	if p != nil {
		return string(boundaryDigest(p).Sum())
	}
	return fmt.Sprint("an end of the query: ", begins)
}

// idNumber converts the ID of a range into a number, so that IDs can be added up.
func idNumber(id string) tally.Sum {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != record.DigestSize {
		return record.NewDigest("no ID").Number()
	}
	return tally.SumOf(b)
}

// maxChildren is a limit that no range's number of children reaches.
const maxChildren = 1 << 20

// countable returns the number of children in a record. If the number is above maxChildren, the
// record is damaged, and countable returns 0.
func countable(r *record.Range) int64 {
	if r.Children > maxChildren {
		return 0
	}
	return r.Children
}

// check reports a problem if the fields of a record contradict each other.
func (l *Ledger) check(r *record.Range) {
	if r.Stored != nil && !r.Stored.Equal(r.Key()) {
		l.Problem("the record of range %s is stored as %s", r.ID, r.Stored.Name)
	}
	if r.Children < 0 || r.Children > maxChildren {
		l.Problem("range %s has %d children", r.ID, r.Children)
	}
	l.checkMarks(r)
	if r.Start != nil && r.End != nil && keyspace.Compare(r.Start, r.End) > 0 {
		l.Problem("range %s starts at %v, and ends before that, at %v", r.ID, r.Start, r.End)
	}
	if r.Alone && (r.Start == nil || r.Start.Key == nil) {
		l.Problem("range %s is for a single entity, and names none", r.ID)
	}
	if r.State == record.Done {
		l.checkDone(r)
	}
}

// checkMarks reports a problem if a record's state contradicts the indexed properties by which
// queries find open ranges and failures.
func (l *Ledger) checkMarks(r *record.Range) {
	if r.State != record.Pending && r.State != record.Done {
		l.Problem("range %s is in the state %q", r.ID, r.State)
	}
	if (r.Open == r.Job) != (r.State == record.Pending) || r.Open != "" && r.Open != r.Job {
		l.Problem("range %s is %s, and its mark is %q", r.ID, r.State, r.Open)
	}
	if (r.Failed == r.Job) != (r.Error != "") || r.Failed != "" &&
		(r.Failed != r.Job || !r.Alone || r.State != record.Done) {
		l.Problem("range %s is %s, and its mark as a failure is %q", r.ID, r.State, r.Failed)
	}
}

// checkDone reports a problem if the results in the record of a done range contradict each other,
// or do not match its seal.
func (l *Ledger) checkDone(r *record.Range) {
	failures := r.Retries + r.Recorded
	if r.Failed != "" {
		failures++
	}
	switch {
	case r.Begun != "" || r.Done.IsZero():
		l.Problem("range %s is done, at %v, and delivery %q has started it and not ended", r.ID, r.Done, r.Begun)
	case r.Processed < 0 || failures < 0 || r.Processed+failures > r.Entities:
		l.Problem("range %s had %d entities, but %d were processed, and %d failed", r.ID, r.Entities, r.Processed,
			failures)
	case r.Written < 0 || r.Written > r.Processed:
		l.Problem("range %s has written %d of the %d entities that it has processed", r.ID, r.Written, r.Processed)
	case !bytes.Equal(r.Seal, r.Digest()):
		l.Problem("range %s was changed after its page: its record does not match its seal", r.ID)
	}
}

// Merge adds the ledger o, which has other records of the same job.
func (l *Ledger) Merge(o *Ledger) {
	l.merge(&o.Sum)
	l.made, l.found = l.made.Plus(o.made), l.found.Plus(o.found)
	l.begin, l.end = l.begin.Plus(o.begin), l.end.Plus(o.end)
	l.meant, l.single = l.meant.Plus(o.meant), l.single.Plus(o.single)
	l.first, l.last = l.first+o.first, l.last+o.last
	l.Tiles, l.PendingTiles, l.Alone = l.Tiles+o.Tiles, l.PendingTiles+o.PendingTiles, l.Alone+o.Alone
	for _, p := range o.Problems {
		l.Problem("%s", p)
	}
	l.missed += o.missed
}

// Close finishes the ledger after all records are added. It computes the counters, and compares the
// sums with the job's record.
func (l *Ledger) Close(j *record.Job) {
	l.Sum.Close(j)
	l.checkStored()
	if !j.AsStarted() {
		l.Problem("the job's mapper, query or params are not those that it was started with")
	}
	if l.made.Plus(idNumber(j.Root())) != l.found {
		l.Problem("the record of a range is missing, or there is a record of a range that the job did not make")
	}
	if l.first != 1 || l.last != 1 || l.begin != l.end {
		l.Problem("the ranges do not tile the query: there is a gap, or an overlap")
	}
	if l.meant != l.single {
		l.Problem("the range of an entity that failed has another entity than its page recorded")
	}
}

// errRecords says that a job's records do not prove that the job has processed every entity once.
var errRecords = errors.New("its records do not add up, so nothing proves that every entity was processed once")

// Err returns an error with the first problem that the ledger has found, and the number of
// problems. It returns nil if there are none.
func (l *Ledger) Err() error {
	if len(l.Problems) == 0 {
		return nil
	}
	return fault.Summarized(errRecords.Error(), fmt.Errorf("%w: %s (problem 1 of %d)", errRecords, l.Problems[0],
		len(l.Problems)+l.missed))
}

// CheckEnd reports a problem if a job has succeeded, and its record has other totals than the
// records of its ranges.
func (l *Ledger) CheckEnd(j *record.Job) {
	if j.State != record.Succeeded && j.State != record.SucceededWithFailures {
		return
	}
	if j.Retrying {
		l.Problem("the job has %s, and failures are being retried", j.State)
	}
	if j.Finalizes && j.Finalized != j.Epoch {
		l.Problem("the job has %s in epoch %d, and its finalizer has taken effect in %d", j.State, j.Epoch, j.Finalized)
	}
	if l.Pending > 0 {
		l.Problem("the job has %s, and %d ranges are pending", j.State, l.Pending)
	}
	if (j.State == record.SucceededWithFailures) != (l.Failures > 0) {
		l.Problem("the job has %s, and %d failures", j.State, l.Failures)
	}
	if l.Lost != nil {
		l.Problem("the job has %s, and %v", j.State, l.Lost)
	}
	recorded, _ := j.RecordedTotals() // if it can't be decoded, the comparison of texts below finds the difference
	if recorded.Processed != l.Processed || recorded.Failures != l.Failures ||
		recorded.Ranges != l.Ranges {
		l.Problem("the totals of the job are %d processed and %d failures in %d ranges, its records add up to %d, %d "+
			"and %d",
			recorded.Processed, recorded.Failures, recorded.Ranges, l.Processed, l.Failures, l.Ranges)
		return
	}
	text, _ := tally.Unpack(j.Totals)
	if sum, _ := json.Marshal(l.Totals); !bytes.Equal(sum, text) { // encoding numbers and texts can't fail
		l.Problem("the counters, pages, spaces or written entities of the job's totals are not what its records add " +
			"up to")
	}
}
