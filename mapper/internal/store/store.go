package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A Store reads and writes the records of jobs and ranges in a database.
type Store struct {
	client *datastore.Client
	asked  bool
	when   func(*datastore.Transaction) error // a condition of UpdateJob, see When; nil: none
	failed error                              // the error of LoadJob and UpdateJob, see Failing; nil: none
}

// New returns the store in a client's database.
func New(client *datastore.Client) Store { return Store{client: client} }

// Failing returns a store for calls that can't succeed: LoadJob and UpdateJob return the error.
func Failing(err error) Store { return Store{failed: err} }

// unusable returns why no call of the store can succeed, or nil.
func (st Store) unusable() error {
	if st.client == nil {
		return cmp.Or(st.failed, errNoClient)
	}
	return nil
}

// Asked returns a store for interactive callers, such as an operator's command. If the database
// does not answer within 20 seconds, reading or changing a job's record fails. The error then names
// the database.
func (st Store) Asked() Store {
	st.asked = true
	return st
}

// When returns a store whose UpdateJob has a further condition. It calls f in its transaction. If f
// returns an error, UpdateJob changes nothing and returns the error.
func When(st Store, f func(*datastore.Transaction) error) Store {
	st.when = f
	return st
}

// answer calls ask and returns its error. In a store of [Store.Asked], the call's context ends
// after 20 seconds.
func (st Store) answer(ctx context.Context, ask func(context.Context) error) error {
	if st.asked {
		return source.Answered(ctx, ask)
	}
	return ask(ctx)
}

// Attempts is the largest number of attempts of a transaction that conflicts with others. If the
// last one fails, the task also fails, and the queue delivers it again later.
const Attempts = 5

// ErrNothing ends a transaction without a commit and without an error. The function passed to
// [Store.Transact] returns it if nothing has to be changed.
var ErrNothing = errors.New("nothing to do")

// Transact calls f in a transaction and commits it. If the commit conflicts with another one,
// Transact repeats both, up to Attempts times in all.
func (st Store) Transact(ctx context.Context, f func(*datastore.Transaction) error) error {
	_, err := st.client.RunInTransaction(ctx, f, datastore.MaxAttempts(Attempts))
	if errors.Is(err, ErrNothing) {
		return nil
	}
	return err
}

// Write adds mutations to a transaction.
func Write(tx *datastore.Transaction, mutations ...*datastore.Mutation) error {
	_, err := tx.Mutate(mutations...)
	return err
}

var errNoClient = fmt.Errorf("%w: there is no engine or client", fault.ErrArguments)

// LoadJob reads the record of a job. If ref has an incarnation, and the job with the ID has another
// one, it returns [record.ErrNoSuchJob].
func (st Store) LoadJob(ctx context.Context, ref record.Ref) (*record.Job, error) {
	id := ref.ID
	if err := st.unusable(); err != nil {
		return nil, err
	}
	if !record.ValidJobID(id) {
		return nil, fmt.Errorf("%w: %.100q is no ID: an ID has 1 to 100 letters, digits, '-' and '_', and is none "+
			"like "+
			"__x__", record.ErrNoSuchJob, id)
	}
	j := &record.Job{ID: id}
	err := st.answer(ctx, func(ctx context.Context) error {
		return property.IgnoreUndeclared(st.client.Get(ctx, record.JobKey(id), j))
	})
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil, fmt.Errorf("%w: %s", record.ErrNoSuchJob, id)
	}
	if err != nil {
		return nil, err
	}
	share(ctx, j)
	return j, ref.Is(j)
}

// LoadRange reads the record of a range.
func (st Store) LoadRange(ctx context.Context, job record.Ref, id string) (*record.Range, error) {
	r := new(record.Range)
	return r, property.IgnoreUndeclared(st.client.Get(ctx, record.RangeKey(job, id), r))
}

// UpdateJob changes a job's record in a transaction. It calls change with the record. If change
// returns true, UpdateJob writes the changed record. It returns the record, changed or not.
func (st Store) UpdateJob(
	ctx context.Context, ref record.Ref, change func(*record.Job) (changed bool, err error),
) (altered *record.Job, err error) {
	if err := st.unusable(); err != nil {
		return nil, err
	}
	if ref.Incarnation == "" { // in a later attempt of the transaction, another job may have the ID
		job, err := st.LoadJob(ctx, ref)
		if err != nil {
			return nil, err
		}
		ref = job.Ref()
	}
	err = st.answer(ctx, func(ctx context.Context) error {
		return st.Transact(ctx, func(tx *datastore.Transaction) error {
			if altered, err = GetJob(tx, ref); err != nil {
				return err
			}
			if st.when != nil {
				if err := st.when(tx); err != nil {
					return err
				}
			}
			was := *altered
			ended, ran := !altered.Unfinished(), altered.State == record.Running
			if changed, err := change(altered); err != nil || !changed {
				return cmp.Or(err, ErrNothing)
			}
			if err := keepUndo(tx, &was, altered); err != nil {
				return err
			}
			if ended && altered.Unfinished() {
				if err := takeTurn(tx, altered); err != nil {
					return err
				}
			}
			if !ran && altered.State == record.Running {
				if err := takeSlots(tx, altered); err != nil {
					return err
				}
			}
			return Write(tx, altered.Update())
		})
	})
	return altered, err
}

// Replace writes a job's record, on the condition that the stored record still has the version of
// the given one. After an error, the record may have been written all the same, because the answer
// to the commit may be lost.
func (st Store) Replace(ctx context.Context, job *record.Job) error {
	_, err := wire.Commit(ctx, st.client,
		[]wire.Mutation{{Mutation: job.Update(), Condition: wire.Condition{Version: job.Version}}})
	return err
}

// ChangeOnce changes a job's record at most once. After an error, if the commit may have taken
// effect, it does not try again.
func (st Store) ChangeOnce(ctx context.Context, ref record.Ref, change func(*record.Job) (changed bool)) (err error) {
	for range Attempts {
		_, err = st.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			job, err := GetJob(tx, ref)
			if err != nil {
				return err
			}
			if !change(job) {
				return ErrNothing
			}
			return Write(tx, job.Update())
		}, datastore.MaxAttempts(1))
		if !errors.Is(err, datastore.ErrConcurrentTransaction) { // otherwise it may have taken effect
			break
		}
	}
	if errors.Is(err, ErrNothing) {
		return nil
	}
	return err
}

// GetJob reads the record of a job in a transaction.
func GetJob(tx *datastore.Transaction, ref record.Ref) (*record.Job, error) {
	j := &record.Job{ID: ref.ID}
	err := property.IgnoreUndeclared(tx.Get(record.JobKey(ref.ID), j))
	if errors.Is(err, datastore.ErrNoSuchEntity) {
		return nil, fmt.Errorf("%w: %s", record.ErrNoSuchJob, ref.ID)
	}
	if err != nil {
		return nil, err
	}
	return j, ref.Is(j)
}

// UpdateRange changes the record of a range in a transaction. It calls change with the record. If
// change returns true, UpdateRange writes the changed record. It returns the record, changed or
// not, or nil if the record is deleted.
func (st Store) UpdateRange(
	ctx context.Context, key *datastore.Key, change func(*record.Range) (changed bool),
) (r *record.Range, err error) {
	err = st.Transact(ctx, func(tx *datastore.Transaction) error {
		r = new(record.Range)
		err := property.IgnoreUndeclared(tx.Get(key, r))
		if errors.Is(err, datastore.ErrNoSuchEntity) {
			r = nil
			return ErrNothing
		}
		if err != nil {
			return err
		}
		if !change(r) {
			return ErrNothing
		}
		return Write(tx, r.Update())
	})
	return r, err
}

// Active loads all jobs that need tasks, because they run or are being cleaned up.
func (st Store) Active(ctx context.Context) ([]*record.Job, error) {
	return st.jobs(ctx, datastore.NewQuery(record.JobKind).FilterField("active", "=", true))
}

// Jobs loads up to limit jobs of a listing in the given queues. The job that started last comes
// first. If before is the place of a job ([record.Job.Place]), only jobs that started before it are
// loaded. An empty queue name stands for all queues.
func (st Store) Jobs(
	ctx context.Context, queues []record.Owner, l record.Listing, before string, limit int,
) ([]*record.Job, error) {
	if st.client == nil {
		return nil, errNoClient
	}
	var found []*record.Job
	for _, queue := range queues {
		l.Queue = queue
		from, to := l.Bounds(before)
		some, err := st.jobs(ctx, datastore.NewQuery(record.JobKind).FilterField("listed", ">=",
			from).FilterField("listed", "<", to).Order("-listed").Limit(limit))
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	slices.SortFunc(found, func(a, b *record.Job) int { return cmp.Compare(b.Place(), a.Place()) })
	return found[:min(len(found), limit)], nil
}

// CountJobs counts the jobs of a listing in the given queues. An empty queue name stands for all
// queues.
func (st Store) CountJobs(ctx context.Context, queues []record.Owner, l record.Listing) (sum int64, err error) {
	if st.client == nil {
		return 0, errNoClient
	}
	for _, queue := range queues {
		l.Queue = queue
		from, to := l.Bounds("")
		q := datastore.NewQuery(record.JobKind).FilterField("listed", ">=", from).FilterField("listed", "<", to).
			NewAggregationQuery().WithCount("n")
		var found datastore.AggregationResult
		err := st.answer(ctx, func(ctx context.Context) (err error) {
			found, err = st.client.RunAggregationQuery(ctx, q)
			return err
		})
		if err != nil {
			return 0, err
		}
		n, ok := found["n"].(*pb.Value)
		if !ok {
			return 0, fmt.Errorf("the answer to a count has %T", found["n"])
		}
		sum += n.GetIntegerValue()
	}
	return sum, nil
}

func (st Store) jobs(ctx context.Context, q *datastore.Query) (jobs []*record.Job, err error) {
	err = st.answer(ctx, func(ctx context.Context) error {
		jobs = nil
		keys, err := st.client.GetAll(ctx, q, &jobs)
		for i, k := range keys {
			jobs[i].ID = k.Name
		}
		return property.IgnoreUndeclared(err)
	})
	return jobs, err
}

// Create writes the record of a new job and the records of its first ranges in one commit. It calls
// when in the same transaction. If when returns an error, nothing is written.
func (st Store) Create(
	ctx context.Context, job *record.Job, first record.First, when func(*datastore.Transaction) error,
) error {
	_, err := st.client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		if when != nil {
			if err := when(tx); err != nil {
				return err
			}
			// set here, so that it is later than everything for which the start has waited
			job.Created = time.Now().UTC().Truncate(time.Microsecond)
		}
		if err := goesOn(tx, job, false); err != nil {
			return err
		}
		if err := takeSlots(tx, job); err != nil {
			return err
		}
		root, children := first.Ranges(job)
		all := []*datastore.Mutation{job.Insert(), root.Insert()}
		for _, child := range children {
			all = append(all, child.Insert())
		}
		return Write(tx, all...)
	}, datastore.MaxAttempts(Attempts))
	return err
}

// BlockStart makes the start of a job fail, even if a process is just creating the job: see
// [record.BlockedRoot]. If the job exists already, or BlockStart was called before, it does
// nothing.
func (st Store) BlockStart(ctx context.Context, job record.Ref, now time.Time) error {
	key, r := record.BlockedRoot(job, now)
	_, err := st.client.Mutate(ctx, datastore.NewInsert(key, r))
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

// Delete deletes the records with these keys.
func (st Store) Delete(ctx context.Context, keys []*datastore.Key) error {
	return st.client.DeleteMulti(ctx, keys)
}
