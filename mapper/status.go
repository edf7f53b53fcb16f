package mapper

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/estimate"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
	"github.com/scattermap/scattermap/mapper/internal/undo"
)

// A Status describes a job: its state, progress, numbers and settings.
type Status struct {
	ID     string `json:"id"`
	Mapper string `json:"mapper"`
	Queue  string `json:"queue,omitempty"` // the job's queue; empty for a job of an older build
	Query  Query  `json:"query"`
	State  State  `json:"state"`
	Phase  Phase  `json:"phase"` // what the job does or waits for, with more detail than State
	// Error says why the job has failed, was paused by a limit, makes no progress, or retries
	// something.
	Error string `json:"error,omitempty"`
	// Limited says that FailureLimit, FailureShare or the Budget has paused the job: see Error.
	Limited bool `json:"limited,omitempty"`
	// Bottleneck says why the job is not faster. This may be its Error, who paused it, its Rate, or
	// what it waits for. It is empty if the job has ended, or if the reason is unknown.
	Bottleneck string `json:"bottleneck,omitempty"`
	// SharesQueue has the IDs of up to three other running jobs in the job's queue, if the job's
	// tasks wait there.
	SharesQueue []string `json:"shares_queue,omitempty"`

	Created  time.Time `json:"created"`        // when the job was started
	Ended    time.Time `json:"ended,omitzero"` // when the job ended; zero before its end
	UndoneBy string    `json:"undo,omitempty"` // the ID of the job that undoes this one, see [Job.Undo]

	Progress Progress `json:"progress"`
	// Dollars is about what the job has cost so far, at the prices of [EngineOptions].Prices. It
	// does not include calls that the function itself makes.
	Dollars float64 `json:"dollars"`
	// DollarsTotal is about what the job will have cost at its end, if the remaining entities cost
	// as much as the earlier ones. It is -1 if unknown.
	DollarsTotal float64 `json:"dollars_total"`

	// Params are the job's parameters as JSON. Settings are its current settings, with defaults
	// filled in and later changes, such as of the Rate.
	Params   json.RawMessage `json:"params"`
	Settings StartOptions    `json:"settings"`

	// Estimated says that the following numbers are estimates from a sample of the records.
	Estimated bool `json:"estimated"`

	// CleanedUp says that some of the job's records are deleted or will expire: see [Job.CleanUp].
	// CleaningUp says that a clean-up is under way.
	CleanedUp  bool `json:"cleaned_up,omitempty"`
	CleaningUp bool `json:"cleaning,omitempty"`

	// CleanUpAt is when the job will be cleaned up because its retention ends: see
	// [StartOptions.Retain]. RetiredAt is when that has happened. Each is zero if unknown or not
	// planned.
	CleanUpAt time.Time `json:"clean_up_at,omitzero"`
	RetiredAt time.Time `json:"retired_at,omitzero"`

	// Processed counts the entities that are done, Failures those that have failed all attempts,
	// and Remaining the others. Total is the sum of the three. Bounds has the bounds of all four.
	// Remaining and Total are -1 while they are unknown. Within one process, Processed never
	// decreases, even if its estimate does.
	Processed int64       `json:"processed"`
	Failures  int64       `json:"failures"`
	Remaining int64       `json:"remaining"`
	Total     int64       `json:"total"`
	Bounds    CountBounds `json:"bounds"`

	// Written counts the processed entities that an [Update] has changed or deleted.
	Written int64 `json:"written"`
	// Calls counts the calls that the function has announced by [Entity.AwaitCall] for committed
	// pages. Repeated runs count. Calls of deliveries that have died are missing.
	Calls int64 `json:"calls"`
	// Conflicts is how many times the function of an [Update] ran again because others had changed
	// an entity.
	Conflicts int64            `json:"conflicts"`
	Counters  map[string]int64 `json:"counters"` // what the function has counted
	Pages     int64            `json:"pages"`    // the number of commits of pages with entities
	// FullPages is the number of pages that ended at a limit: of count, bytes or time.
	FullPages int64 `json:"full_pages"`
	// Tasks is the number of ranges for which a task was enqueued.
	Tasks      int64 `json:"tasks"`
	OpenRanges int64 `json:"open"` // the number of ranges that are not done
	// MaxDepth is the greatest depth of a range. The first range has depth 0. A range that was cut
	// off another one has the depth of that one plus one.
	MaxDepth int64 `json:"depth"`

	// CountersDropped says that the job has exceeded the limits of counters, has failed for that
	// reason, and has lost its counters: see [Entity.Count].
	CountersDropped bool `json:"counters_dropped,omitempty"`

	// WithoutShardBy is about how many entities of the query lacked the property of Query.ShardBy
	// when the job started. The job does not process these. The number is too low if some entities
	// have several values. It is -1 if the database can't count, or if the query has more than 100
	// kinds and namespaces.
	WithoutShardBy int64 `json:"unsharded,omitempty"`

	// ByKind has Processed and Failures for each kind in each namespace, if the query has several.
	// It lists only those with entities, up to 5,000 and 128 KiB. KindsOmitted is how many are left
	// out; above 1,000 it is an estimate.
	ByKind       []KindStatus `json:"spaces,omitempty"`
	KindsOmitted int          `json:"spaces_left_out,omitempty"`

	queue estimate.Queue // what the queue has said about the job's tasks
}

// Err returns an error if the job has failed, was aborted, was paused by one of its limits, or has
// ended with failures. It returns nil if the job has processed every entity, if it still runs, and
// if a caller has paused it:
//
//	status, err := job.Wait(ctx)
//	if err == nil {
//		err = status.Err()
//	}
//
// If failures are acceptable, first compare Status.State with [StateSucceededWithFailures]. The
// error has the text of Status.Error, which may contain data of entities.
func (s *Status) Err() error {
	switch {
	case s.State == StateSucceededWithFailures:
		return setting.Errorf("mapper: job %s has failed on %d of its entities: Job.FailuresPage lists them, and "+
			"Job.Retry tries them again", s.ID, s.Failures)
	case s.State == StateFailed:
		return fmt.Errorf("mapper: job %s has failed: %s", s.ID, s.Error)
	case s.State == StateAborted:
		return fmt.Errorf("mapper: job %s was aborted", s.ID)
	case s.Limited:
		return fmt.Errorf("mapper: job %s is paused by a limit: %s", s.ID, s.Error)
	}
	return nil
}

// A KindStatus has a job's numbers for one kind in one namespace: see [Status].ByKind.
type KindStatus struct {
	Namespace string `json:"namespace"`
	Kind      string `json:"kind"`
	Processed int64  `json:"processed"`
	Failures  int64  `json:"failures"`
}

// spacesOf returns the numbers for each kind in each namespace, sorted.
func spacesOf(t *record.Totals) (all []KindStatus) {
	for _, name := range slices.Sorted(maps.Keys(t.Spaces)) {
		namespace, kind, _ := strings.Cut(name, "/")
		all = append(all, KindStatus{namespace, kind, t.Spaces[name].Processed, t.Spaces[name].Failures})
	}
	return all
}

// Status returns the job's status. Its cost depends on the job's state:
//
//   - If the job has succeeded, or has failed after its last page, Status costs one read, and the
//     numbers are exact.
//   - If the job runs or is paused, Status costs up to 501 reads. The numbers are exact if the job
//     has fewer than 250 ranges, and estimates otherwise.
//   - If the job was aborted, or failed before its last page was done, Status costs up to 502
//     reads, and the numbers are as for a running job. [Job.CleanUp] adds up the records; after
//     that it costs one read, and the numbers are exact.
//
// For a running job, Status also asks the queue about two tasks. If the queue can't deliver them,
// Status.Error says why: for example, the queue's URL is wrong, or its account may not call the
// service. Without the permission cloudtasks.tasks.get this check is left out.
func (j *Job) Status(ctx context.Context) (*Status, error) {
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, fmt.Errorf("mapper: status: %w", err)
	}
	var sum record.Totals
	estimated := false
	switch {
	case len(job.Totals) > 0:
		sum, err = job.RecordedTotals()
	case State(job.State).Ended():
		job, sum, estimated, err = j.engine.store().SampleEnded(ctx, job)
	default:
		sum, estimated, err = j.engine.store().LiveTotals(ctx, job)
	}
	if err != nil {
		return nil, fmt.Errorf("mapper: status of %s: %w", j.ID, err)
	}
	s, err := statusOf(job, sum)
	if err != nil {
		return nil, fmt.Errorf("mapper: status of %s: %w", j.ID, err)
	}
	s.Estimated = estimated
	if s.State == StateRunning {
		j.engine.countBlind(ctx, s.Query.inner(), sum.Sample)
	}
	look := estimate.Look{Job: job, Totals: sum, Query: s.Query.inner(), Now: time.Now(), Prices: j.engine.Prices()}
	if s.State == StateRunning && job.Error == "" {
		var open []*record.Range
		if sum.Sample != nil {
			open = sum.Sample.Open
		}
		look.Queue = asked(j.engine.queues.of(job.Queue)).Delivery(ctx, job, job.Overdue(open))
		s.Error = cmp.Or(look.Queue.Complaint, s.Error)
	}
	s.queue, s.SharesQueue = look.Queue, look.Queue.Shares()
	s.show(j.engine.shown.Latest(job.Ref().String(), look.State()))
	if e := j.engine; s.State == StateRunning && len(e.mappers) > 0 {
		if def := e.mappers[s.Mapper]; def != nil {
			if _, err := def.Prepare(job.Params, false); err != nil {
				s.Error = fmt.Sprintf("this build's mapper %q has other params, and tasks that it gets wait for one "+
					"with these: %v", s.Mapper, err)
				s.Phase, s.Bottleneck = PhaseStuck, s.Error
			}
		}
	}
	return s, nil
}

// Limits of countBlind: the number of ranges that it counts, and the number of entities that it
// counts in each.
const (
	mostBlind   = 4
	blindCounts = 100_000
)

// countBlind counts the entities of pending ranges whose sizes are unknown, and adds the numbers to
// the sample s. So [Job.Status] can say how much remains. Such a range is the whole query before
// the job's first page, or the range of a job with one worker.
func (e *Engine) countBlind(ctx context.Context, q query.Query, s *record.Sample) {
	if s == nil || s.Blind == 0 || s.Blind > mostBlind || s.LeftScale != 1 || q.Many() {
		return
	}
	src := e.source().Of(ctx, q)
	for _, r := range s.Open {
		if r.Alone || r.Estimate > 0 || r.Exact {
			continue
		}
		n := e.shown.Count(r, func() (int64, bool) { return src.Count(ctx, q.Scans(r.Start, r.End), blindCounts) })
		if n >= 0 && n < blindCounts {
			s.CountBlind(n)
		}
	}
}

// show copies the estimated numbers, progress and phase from m into the status.
func (s *Status) show(m estimate.State) {
	s.Processed, s.Failures, s.Remaining, s.Total = m.Processed.About, m.Failures.About, m.Remaining.About,
		m.Total.About
	bounds := func(n estimate.Number) Bounds { return Bounds{n.Min, n.Max} }
	s.Bounds = CountBounds{bounds(m.Processed), bounds(m.Failures), bounds(m.Remaining), bounds(m.Total)}
	s.Progress, s.Dollars, s.DollarsTotal = Progress(m.Progress), m.Dollars, m.DollarsTotal
	s.Phase, s.Bottleneck = Phase(m.Phase), m.Reason
}

// Bounds are the bounds of an estimate. Max is -1 if there is no upper bound.
type Bounds struct {
	Min int64 `json:"min"`
	Max int64 `json:"max"`
}

// CountBounds are the bounds of a job's numbers of entities. They are three standard deviations
// below and above an estimate. If a number is exact, both bounds are equal to it.
type CountBounds struct {
	Processed Bounds `json:"processed"`
	Failures  Bounds `json:"failures"`
	Remaining Bounds `json:"remaining"`
	Total     Bounds `json:"total"`
}

// A Progress says which share of its entities a job has processed, how fast it is, and when it will
// end.
type Progress struct {
	// Fraction estimates the share of its entities that the job has processed or recorded as
	// failures, in [0, 1]. FractionMin and FractionMax are its bounds. All three are equal if the
	// numbers of entities are exact. They are far apart while little is known, and if the query
	// selects few entities of a kind. Entities that are inserted while the job runs do not count
	// before the job finds them.
	FractionMin float64 `json:"at_least"`
	Fraction    float64 `json:"about"`
	FractionMax float64 `json:"at_most"`

	EntitiesPerSecond        float64 `json:"rate"`    // present speed; 0 if the job does not run
	EntitiesPerSecondOverall float64 `json:"overall"` // mean speed since the start

	// TimeLeft estimates the time until the job ends, including the waits before retries.
	// TimeLeftMin and TimeLeftMax are its bounds. All three are -1 if the time is unknown, or if
	// the job does not run and has entities left. They are 0 if the job has processed all entities.
	TimeLeftMin time.Duration `json:"left_at_least_ns"`
	TimeLeft    time.Duration `json:"left_ns"`
	TimeLeftMax time.Duration `json:"left_at_most_ns"`
}

// statusOf returns the status of a job, except for the numbers of its entities. The parameter sum
// has the totals of all of the job's records.
func statusOf(j *record.Job, sum record.Totals) (*Status, error) {
	q, err := query.Of(j)
	if err != nil {
		return nil, err
	}
	settings, err := settingsOf(j)
	if err != nil {
		return nil, err
	}
	return &Status{
		CleanedUp: j.Cleaned, CleaningUp: j.Cleaning != "", CleanUpAt: j.DueAt(), RetiredAt: j.CleanedAt,
		ID:     j.ID,
		Mapper: j.Mapper, Queue: string(j.Queue), Query: publicQuery(q), State: State(j.State),
		Error: cmp.Or(j.Error, j.Trouble), Limited: j.State == record.Paused && (j.Limited || j.OverBudget),
		Params: slices.Clone(j.Params), Settings: settings, Created: j.Created,
		Ended: j.Ended, UndoneBy: j.Undo,
		Written: sum.Written, Calls: sum.Calls, Conflicts: sum.Conflicts, Counters: sum.Counters,
		Pages: sum.Pages, FullPages: sum.FullPages, Tasks: sum.Tasks, OpenRanges: sum.Pending, MaxDepth: sum.Depth,
		WithoutShardBy: sum.Unsharded, CountersDropped: j.CountersDropped || j.CountersLost || sum.CountersLost,
		ByKind: spacesOf(&sum), KindsOmitted: sum.SpacesLeftOut,
	}, nil
}

// completionOf returns the status for a job's finalizer. All entities of the job are done. The
// parameter sum has the totals of all of its records.
func completionOf(ctx context.Context, j *record.Job, sum record.Totals) (*Status, error) {
	s, err := statusOf(j, sum)
	if err != nil {
		return nil, err
	}
	sum.Sample = nil
	look := estimate.Look{Job: j, Totals: sum, Query: s.Query.inner(), Now: time.Now(),
		Prices: EngineFromContext(ctx).Prices()}
	s.show(look.State())
	return s, nil
}

// Wait waits until the job has ended, or until one of its limits has paused it, and returns its
// status. It keeps waiting if a caller has paused the job, and during errors that last up to a
// minute. Its error says only that waiting failed: call [Status.Err] to see whether the job has
// succeeded.
//
// If the job ends in this process, Wait returns at once. Otherwise it polls the job's record, at
// first often, and later every two seconds. Every minute it also checks, by up to 20 reads and two
// calls of the queue, whether the queue can deliver the job's tasks. If not, it logs the reason.
func (j *Job) Wait(ctx context.Context) (*Status, error) {
	var s *Status
	on, _ := queueOf(ctx, j) // Await reads the job again, and repeats failed reads
	err := asked(on).Await(ctx, j.ref(), func(ended record.Ref) (err error) {
		s, err = (&Job{ID: j.ID, incarnation: ended.Incarnation, engine: j.engine}).Status(ctx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("mapper: wait for %s: %w", j.ID, err)
	}
	return s, nil
}

// A Failure is an entity that has failed all of its attempts.
type Failure struct {
	Key      *datastore.Key `json:"key"`      // in JSON, the result of Key.Encode
	Path     string         `json:"path"`     // the key for people, such as /Account,"ann" or [namespace]/Account,7
	Error    string         `json:"error"`    // the error of the last attempt
	Attempts int            `json:"attempts"` // the number of attempts so far
	Time     time.Time      `json:"time"`     // the time of the last attempt
}

// A FailureCause is the common text of the errors of several failures, without data of single
// entities.
type FailureCause struct {
	// Text is the common text. "#" replaces numbers, words with digits, quoted texts, addresses,
	// and the names in keys.
	Text string `json:"cause"`

	// Digest is a short hash of Text. The log never contains data of entities, so its line
	// "entities failed" has the Digest instead of the Text.
	Digest string `json:"digest"`

	Count     int64   `json:"count"`     // the number of failures with this cause
	Estimated bool    `json:"estimated"` // Count is an estimate: the job has more than 1,000 failures
	Example   Failure `json:"example"`
}

// causesRead is the largest number of failures that FailureCauses reads.
const causesRead = 1000

// FailureCauses groups the job's failures by their errors, and returns the most frequent cause
// first. It costs up to 1,001 reads and a count. If there are more than 1,000 failures, it reads a
// random 1,000 of them, and the counts are estimates. If the job's failures were cleaned up after
// its retention, the error is [ErrWrongState].
func (j *Job) FailureCauses(ctx context.Context) ([]FailureCause, error) {
	job, err := j.engine.store().LoadJob(ctx, j.ref())
	if err != nil {
		return nil, fmt.Errorf("mapper: causes: %w", err)
	}
	if err := job.CheckRecords(); err != nil {
		return nil, fmt.Errorf("mapper: causes of %s: %w", j.ID, err)
	}
	failed, err := j.engine.store().FirstMarked(ctx, "failed", job.Ref(), "", causesRead)
	if err != nil {
		return nil, fmt.Errorf("mapper: causes of %s: %w", j.ID, err)
	}
	all := int64(len(failed))
	if len(failed) == causesRead {
		if all, err = j.engine.store().CountFailures(ctx, job.Ref(), 0); err != nil {
			return nil, fmt.Errorf("mapper: causes of %s: %w", j.ID, err)
		}
	}
	var causes []FailureCause
	for _, c := range record.Causes(failed, all) {
		causes = append(causes, FailureCause{c.Text, fault.Digest(c.Text), c.Count, c.Estimated, failureOf(c.Example)})
	}
	return causes, nil
}

// failureOf returns the failure that a range's record describes.
func failureOf(r *record.Range) Failure {
	return Failure{Key: r.Start.Key, Path: names.Key(r.Start.Key), Error: r.Error, Attempts: int(r.Refusals),
		Time: r.Done}
}

// Failures lists all failures of the job. It reads them by [Job.FailuresPage], one page at a time.
// If a read fails, the last element has the error.
func (j *Job) Failures(ctx context.Context) iter.Seq2[Failure, error] {
	return pages(func(cursor string) ([]Failure, string, error) { return j.FailuresPage(ctx, cursor) })
}

// FailuresPage lists a page of the job's failures, in no useful order. An empty cursor starts the
// list. Pass next as the cursor of the next page; an empty next ends the list. A page has up to 100
// failures, and costs as many reads.
func (j *Job) FailuresPage(ctx context.Context, cursor string) (failures []Failure, next string, err error) {
	ranges, next, err := j.engine.store().Page(ctx, j.ref(), "failed", cursor, store.FailurePage)
	if err != nil {
		return nil, "", fmt.Errorf("mapper: failures of %s: %w", j.ID, err)
	}
	for _, r := range ranges {
		failures = append(failures, failureOf(r))
	}
	return failures, next, nil
}

// NotUndone lists all entities that this job, an undo, has not restored. It reads them by
// [Job.NotUndonePage], one page at a time. If a read fails, the last element has the error.
func (j *Job) NotUndone(ctx context.Context) iter.Seq2[NotUndone, error] {
	return pages(func(cursor string) ([]NotUndone, string, error) { return j.NotUndonePage(ctx, cursor) })
}

// NotUndonePage lists some of the entities that this job, an undo, has not restored. An empty
// cursor starts the list. Pass next as the cursor of the next call; an empty next ends the list. A
// call reads up to 10 records of the job's pages, and lists all of their entities. For other jobs
// the list is empty.
func (j *Job) NotUndonePage(ctx context.Context, cursor string) (left []NotUndone, next string, err error) {
	all, next, err := undo.Left(ctx, j.engine.store(), j.ref(), cursor)
	if err != nil {
		return nil, "", fmt.Errorf("mapper: what %s has left: %w", j.ID, err)
	}
	for _, l := range all {
		left = append(left, NotUndone{l.Key, names.Key(l.Key), l.Why})
	}
	return left, next, nil
}

// An Example shows what a rehearsal would do to one entity: see [Job.Examples].
type Example struct {
	Key  *datastore.Key `json:"key"`  // in JSON, the result of Key.Encode
	Path string         `json:"path"` // the key for people, as in [Failure]
	// What is the effect: "change", "delete", "put another entity" or "delete another entity".
	What string `json:"what"`
	// Properties are the properties that would be changed, put or deleted.
	Properties []ExampleProperty `json:"properties,omitempty"`
}

// An ExampleProperty is a property of an [Example], with its values as texts of up to 200
// characters.
type ExampleProperty struct {
	Name   string `json:"name"`
	Before string `json:"before"` // empty if the property does not exist
	After  string `json:"after"`
}

// Examples returns examples of what this job, a rehearsal ([StartOptions].DryRun), would do. It
// returns two examples from each of up to 20 random pages. For other jobs it returns none.
func (j *Job) Examples(ctx context.Context) (examples []Example, err error) {
	ranges, _, err := j.engine.store().Page(ctx, j.ref(), "examples_of", "", 20)
	var all []record.Example
	if err == nil {
		all, err = record.ExamplesOf(ranges)
	}
	if err != nil {
		return nil, fmt.Errorf("mapper: examples of %s: %w", j.ID, err)
	}
	for _, x := range all {
		example := Example{Key: x.Key, Path: names.Key(x.Key), What: x.What}
		for _, p := range x.Properties {
			example.Properties = append(example.Properties, ExampleProperty(p))
		}
		examples = append(examples, example)
	}
	return examples, nil
}
