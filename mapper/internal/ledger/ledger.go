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

// A Ledger adds up the records of a job's ranges, in any order and part by part, and whether they
// belong together. It takes no memory for each of them:
//
//   - A record says how many children its range has, which says their IDs. The sum of the IDs
//     that the job and its ranges have made is that of the records that are there, or one is
//     missing, or is none of the job's.
//   - The ranges tile the query if one begins with it, one ends with it, and each other one begins
//     where one ends. Then as many begin as end before any position, but for the one that begins
//     with the query: it is in one range. So the sums of the places where ranges begin and where
//     they end are the same. (Sums are of hashes of 128 bits.)
//   - A range of a single entity is in no tile of its own. The page that it was in has recorded
//     which entity it has: the sums of hashes of that are the same, too.
//   - A record that is done has a seal: a hash of what it said when its page was committed.
type Ledger struct {
	Sum
	made, found tally.Sum // sums of the IDs of ranges: those that were made, and those of the records
	begin, end  tally.Sum // sums of hashes of positions
	// sums of hashes of single entities: as their pages had them, and as their records have
	meant, single       tally.Sum
	first, last         int64 // ranges that begin, and end, with the query
	Problems            []string
	missed              int   // problems beyond those
	Tiles, PendingTiles int64 // ranges that are not those of single entities
	Alone               int64 // and those that are
}

// MaxProblems bounds what a ledger lists.
const MaxProblems = 20

// Problem notes what is wrong with the records.
func (l *Ledger) Problem(format string, args ...any) {
	if len(l.Problems) == MaxProblems {
		l.missed++
		return
	}
	l.Problems = append(l.Problems, fault.Text(fmt.Errorf(format, args...)))
}

// Add adds a record.
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

// boundaryHash returns a hash of where a range begins or ends. That of a position is the same for
// both, and those of the two ends of a query, nil, are not.
func boundaryHash(p *keyspace.Position, begins bool) string {
	if p != nil {
		return string(boundaryDigest(p).Sum())
	}
	if begins {
		return "the beginning"
	}
	return "the end"
}

// idNumber returns the ID of a range, which is a hash, as a number.
func idNumber(id string) tally.Sum {
	b, err := hex.DecodeString(id)
	if err != nil || len(b) != record.DigestSize {
		return record.NewDigest("no ID").Number()
	}
	return tally.SumOf(b)
}

// maxChildren is more than any range has.
const maxChildren = 1 << 20

// countable returns how many children a range has, if it may have so many.
func countable(r *record.Range) int64 {
	if r.Children > maxChildren {
		return 0
	}
	return r.Children
}

// check checks a record by itself.
func (l *Ledger) check(r *record.Range) {
	if r.Stored != nil && !r.Stored.Equal(r.Key()) {
		l.Problem("the record of range %s is stored as %s", r.ID, r.Stored.Name)
	}
	if r.Children < 0 || r.Children > maxChildren {
		l.Problem("range %s has %d children", r.ID, r.Children)
	}
	l.checkMarks(r)
	if !r.Alone && r.Start != nil && r.End != nil && keyspace.Compare(r.Start, r.End) > 0 {
		l.Problem("range %s begins at %v, and ends before that, at %v", r.ID, r.Start, r.End)
	}
	if r.Alone && (r.Start == nil || r.Start.Key == nil) {
		l.Problem("range %s is that of a single entity, and has none", r.ID)
	}
	if r.State == record.Done {
		l.checkDone(r)
	}
}

// checkMarks checks a record's state, and the properties by which open ranges and failures are
// found.
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

// checkDone checks what a range's page has recorded.
func (l *Ledger) checkDone(r *record.Range) {
	failures := r.Retries + r.Recorded
	if r.Failed != "" {
		failures++
	}
	switch {
	case r.Begun != "" || r.Done.IsZero():
		l.Problem("range %s is done, at %v, and the delivery %q has begun and not ended", r.ID, r.Done, r.Begun)
	case r.Processed < 0 || failures < 0 || r.Processed+failures > r.Entities:
		l.Problem("range %s had %d entities, of which %d were processed, and %d failed", r.ID, r.Entities, r.Processed,
			failures)
	case r.Written < 0 || r.Written > r.Processed:
		l.Problem("range %s has written %d of the %d entities that it has processed", r.ID, r.Written, r.Processed)
	case !bytes.Equal(r.Seal, r.Digest()):
		l.Problem("range %s is not as its page has recorded it", r.ID)
	}
}

// Merge adds another part.
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

// Close compares what all records add up to with the job.
func (l *Ledger) Close(j *record.Job) {
	l.Sum.Close(j)
	l.checkStored()
	if !j.AsStarted() {
		l.Problem("the job's mapper, query or params are not those that it was started with")
	}
	if l.made.Plus(idNumber(j.Root())) != l.found {
		l.Problem("the records are not those of the ranges that were made, of which one is missing, or there is one " +
			"more")
	}
	if l.first != 1 || l.last != 1 || l.begin != l.end {
		l.Problem("the ranges do not tile the query: there is a gap, or an overlap")
	}
	if l.meant != l.single {
		l.Problem("an entity that is, or was, tried again by itself is not the one that its page had")
	}
}

// errRecords says that the records of a job do not add up.
var errRecords = errors.New("its records do not add up, so nothing proves that every entity was processed once")

// Err returns what is wrong with the records.
func (l *Ledger) Err() error {
	if len(l.Problems) == 0 {
		return nil
	}
	return fault.Summarized(errRecords.Error(), fmt.Errorf("%w: %s (problem 1 of %d)", errRecords, l.Problems[0],
		len(l.Problems)+l.missed))
}

// CheckEnd compares a job that has ended with what its ranges add up to.
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
	recorded, err := j.RecordedTotals()
	if err != nil || recorded.Processed != l.Processed || recorded.Failures != l.Failures ||
		recorded.Ranges != l.Ranges {
		l.Problem("the totals of the job are %d processed and %d failures in %d ranges, its records add up to %d, %d "+
			"and %d",
			recorded.Processed, recorded.Failures, recorded.Ranges, l.Processed, l.Failures, l.Ranges)
		return
	}
	text, err := tally.Unpack(j.Totals)
	if sum, encoding := json.Marshal(l.Totals); err != nil || encoding != nil || !bytes.Equal(sum, text) {
		l.Problem("the counters, pages, spaces or written entities of the job's totals are not what its records add " +
			"up to")
	}
}
