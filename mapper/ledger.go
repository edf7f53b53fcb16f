package mapper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A ledger adds up the records of a job's ranges, in any order and part by part, and whether they
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
type ledger struct {
	totals
	made, found         tally.Sum // sums of the IDs of ranges: those that were made, and those of the records
	begin, end          tally.Sum // sums of hashes of positions
	meant, single       tally.Sum // sums of hashes of single entities: as their pages had them, and as their records have
	first, last         int64     // ranges that begin, and end, with the query
	problems            []string
	missed              int   // problems beyond those
	tiles, pendingTiles int64 // ranges that are not those of single entities
	alone               int64 // and those that are
}

// maxProblems bounds what a ledger lists.
const maxProblems = 20

func (l *ledger) problem(format string, args ...any) {
	if len(l.problems) == maxProblems {
		l.missed++
		return
	}
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// add adds a record.
func (l *ledger) add(r *rangeRecord) error {
	l.check(r)
	l.found = l.found.Plus(idNumber(r.ID))
	for i := range r.countable() {
		l.made = l.made.Plus(idNumber(rangeID(r.ID, i)))
	}
	if len(r.Single) == digestSize {
		l.meant = l.meant.Plus(tally.SumOf(r.Single))
	}
	if r.Alone {
		l.alone++
		l.single = l.single.Plus(r.single())
		return l.totals.add(r)
	}
	if r.State != done {
		l.pendingTiles++
	}
	l.tiles++
	l.boundary(r.Start, &l.begin, &l.first)
	l.boundary(r.End, &l.end, &l.last)
	return l.totals.add(r)
}

func (l *ledger) boundary(p *keyspace.Position, sum *tally.Sum, ends *int64) {
	if p == nil {
		*ends++
		return
	}
	d := newDigest("position")
	d.position(p)
	*sum = sum.Plus(d.number())
}

// maxChildren is more than any range has.
const maxChildren = 1 << 20

// countable returns how many children the range has, if it may have so many.
func (r *rangeRecord) countable() int64 {
	if r.Children > maxChildren {
		return 0
	}
	return r.Children
}

// check checks a record by itself.
func (l *ledger) check(r *rangeRecord) {
	if r.stored != nil && !r.stored.Equal(r.key()) {
		l.problem("the record of range %s is stored as %s", r.ID, r.stored.Name)
	}
	if r.Children < 0 || r.Children > maxChildren {
		l.problem("range %s has %d children", r.ID, r.Children)
	}
	if r.State != pending && r.State != done {
		l.problem("range %s is in the state %q", r.ID, r.State)
	}
	if (r.Open == r.Job) != (r.State == pending) || r.Open != "" && r.Open != r.Job {
		l.problem("range %s is %s, and its mark is %q", r.ID, r.State, r.Open)
	}
	if (r.Failed == r.Job) != (r.Error != "") || r.Failed != "" && (r.Failed != r.Job || !r.Alone || r.State != done) {
		l.problem("range %s is %s, and its mark as a failure is %q", r.ID, r.State, r.Failed)
	}
	if !r.Alone && r.Start != nil && r.End != nil && keyspace.Compare(r.Start, r.End) > 0 {
		l.problem("range %s begins at %v, and ends before that, at %v", r.ID, r.Start, r.End)
	}
	if r.Alone && (r.Start == nil || r.Start.Key == nil) {
		l.problem("range %s is that of a single entity, and has none", r.ID)
	}
	if r.State != done {
		return
	}
	failures := r.Retries + r.Recorded
	if r.Failed != "" {
		failures++
	}
	switch {
	case r.Begun != "" || r.Done.IsZero():
		l.problem("range %s is done, at %v, and the delivery %q has begun and not ended", r.ID, r.Done, r.Begun)
	case r.Processed < 0 || failures < 0 || r.Processed+failures > r.Entities:
		l.problem("range %s had %d entities, of which %d were processed, and %d failed", r.ID, r.Entities, r.Processed, failures)
	case !bytes.Equal(r.Seal, r.seal()):
		l.problem("range %s is not as its page has recorded it", r.ID)
	}
}

// merge adds another part.
func (l *ledger) merge(o *ledger) {
	l.totals.merge(o.totals)
	l.made, l.found = l.made.Plus(o.made), l.found.Plus(o.found)
	l.begin, l.end = l.begin.Plus(o.begin), l.end.Plus(o.end)
	l.meant, l.single = l.meant.Plus(o.meant), l.single.Plus(o.single)
	l.first, l.last = l.first+o.first, l.last+o.last
	l.tiles, l.pendingTiles, l.alone = l.tiles+o.tiles, l.pendingTiles+o.pendingTiles, l.alone+o.alone
	for _, p := range o.problems {
		l.problem("%s", p)
	}
	l.missed += o.missed
}

// close compares what all records add up to with the job.
func (l *ledger) close(j *jobRecord) {
	l.totals.close(j)
	if j.incarnation(j.Incarnation[:min(len(j.Incarnation), 16)]) != j.Incarnation {
		l.problem("the job's mapper, query or params are not those that it was started with")
	}
	if l.made.Plus(idNumber(j.root())) != l.found {
		l.problem("the records are not those of the ranges that were made, of which one is missing, or there is one more")
	}
	if l.first != 1 || l.last != 1 || l.begin != l.end {
		l.problem("the ranges do not tile the query: there is a gap, or an overlap")
	}
	if l.meant != l.single {
		l.problem("an entity that is, or was, tried again by itself is not the one that its page had")
	}
}

// errRecords says that the records of a job do not add up.
var errRecords = errors.New("its records do not add up, so nothing proves that every entity was processed once")

// err returns what is wrong with the records.
func (l *ledger) err() error {
	if len(l.problems) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s (problem 1 of %d)", errRecords, l.problems[0], len(l.problems)+l.missed)
}

// checkEnd compares a job that has ended with what its ranges add up to.
func (l *ledger) checkEnd(j *jobRecord) {
	if j.State != succeeded && j.State != succeededWithFailures {
		return
	}
	if j.Replaying {
		l.problem("the job has %s, and failures are being retried", j.State)
	}
	if j.Finalizes && j.Finalized != j.Epoch {
		l.problem("the job has %s in epoch %d, and its finalizer has taken effect in %d", j.State, j.Epoch, j.Finalized)
	}
	if l.Pending > 0 {
		l.problem("the job has %s, and %d ranges are pending", j.State, l.Pending)
	}
	if (j.State == succeededWithFailures) != (l.Failures > 0) {
		l.problem("the job has %s, and %d failures", j.State, l.Failures)
	}
	if l.lost != nil {
		l.problem("the job has %s, and %v", j.State, l.lost)
	}
	recorded, err := j.totals()
	if err != nil || recorded.Processed != l.Processed || recorded.Failures != l.Failures || recorded.Ranges != l.Ranges {
		l.problem("the totals of the job are %d processed and %d failures in %d ranges, its records add up to %d, %d and %d",
			recorded.Processed, recorded.Failures, recorded.Ranges, l.Processed, l.Failures, l.Ranges)
		return
	}
	if sum, err := json.Marshal(l.totals); err != nil || !bytes.Equal(sum, j.Totals) {
		l.problem("the counters, pages or spaces of the job's totals are not what its records add up to")
	}
}
