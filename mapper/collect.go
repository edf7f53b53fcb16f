package mapper

import (
	"context"
	"encoding/json"
	"errors"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

// A Page holds the records that a [VisitPages] mapper has made from the entities of one page. It is
// the argument of the mapper's second function, which runs before the page is committed. It is
// valid during one call of that function. After that, Count, Put, Delete and OnRollback panic. Its
// methods are safe for concurrent use.
type Page[R any] struct {
	// Records are in the order of their entities. There is at least one.
	Records []R

	name    string
	attempt *function.Attempt
}

// UniqueName returns a name, for example for a file, that no other attempt, page or job has. It
// starts with evenly distributed hexadecimal digits, so that a bucket can spread its load over the
// names. The rest has letters, digits and '-'.
func (p *Page[R]) UniqueName() string { return p.name }

// RunID returns a text that identifies this run of the job, as [Completion.RunID] does.
func (p *Page[R]) RunID() string { return p.attempt.Job() }

// Count adds n to one of the job's counters in the page's commit, exactly once: see [Entity.Count].
func (p *Page[R]) Count(name string, n int64) { p.attempt.Count(name, n) }

// Put saves an entity in the page's commit, exactly once. The source is a struct pointer or a
// datastore.PropertyLoadSaver, and the key may be incomplete. A page may put up to 499 entities and
// 8 MiB. A source that can't be saved is a [Permanent] error of the page's function.
func (p *Page[R]) Put(key *datastore.Key, src any) { p.attempt.Put(key, src) }

// Delete deletes an entity in the page's commit.
func (p *Page[R]) Delete(key *datastore.Key) { p.attempt.Delete(key) }

// AwaitCall announces a call of an outside service, as [Entity.AwaitCall] does. After an error, the
// page is retried as a whole later, and no attempt counts. If the function has already made calls,
// or needs more than the rate can give, the page is retried with half of its entities. The wait
// does not count for the function's limit of 30 s.
func (p *Page[R]) AwaitCall(ctx context.Context) error { return p.attempt.AwaitCalls(ctx, 1) }

// AwaitCalls is [Page.AwaitCall] for n calls.
func (p *Page[R]) AwaitCalls(ctx context.Context, n int) error { return p.attempt.AwaitCalls(ctx, n) }

// OnRollback adds a function that removes what the page's function wrote elsewhere. It is called if
// the page is not committed, because the page failed or another delivery has committed it. If there
// are several such functions, the last one is called first. Together they have 30 s. If one panics,
// the others are called, and the log says so. None is called if the process dies, or if the page's
// function takes too long. Then files or rows are left over: those whose names no commit has
// recorded, for example by [Page.Put].
func (p *Page[R]) OnRollback(f func(context.Context)) { p.attempt.OnLost(f) }

// VisitPages defines a mapper that writes records elsewhere, a page at a time: a file, a batch of
// rows, or a request with many messages.
//
// The argument record is a function that makes a record of each entity, or returns [Skip] to make
// none. Its errors are treated as in a [Visit]. The argument page is a function that gets the
// records of a page, and writes them under [Page.UniqueName]. Its puts and counts commit together
// with the page.
//
// The function page may run several times for the same page. The writes of only one run count; the
// others are leftovers. To tell them apart, store the name with [Page.Put]. Then a write counts if,
// and only if, its name is stored. Each entity is in one such write.
//
// The function page has 30 s. If it returns an error or panics, the page is retried as a whole,
// with as many attempts as an entity has, and after that the job fails. An error marked by
// [Permanent] fails the job at once. [Job.Resume] continues a failed job. A page ends after 4 MiB
// of entities, so a task holds about 4 MiB in memory.
func VisitPages[T, R, P any](
	name string, record func(ctx context.Context, e *Entity[T], params P) (R, error),
	page func(ctx context.Context, p *Page[R], params P) error,
) *Mapper[P] {
	var fn func(ctx context.Context, e *Entity[T], params P) error
	if record != nil {
		fn = func(ctx context.Context, e *Entity[T], params P) error {
			r, err := record(ctx, e, params)
			if err == nil {
				e.attempt.Collect(r)
			}
			return err
		}
	}
	m := define(name, function.Visit, fn)
	if page == nil && m.def.Err == nil {
		m.def.Err = errors.New("the function over pages is nil")
	}
	m.def.PreparePage = func(encoded json.RawMessage) (function.PageFunc, error) {
		var params P
		if err := function.DecodeParams(encoded, &params); err != nil {
			return nil, err
		}
		return func(ctx context.Context, a *function.Attempt, name string, collected []any) (err error) {
			defer function.Recovered(&err)
			p := &Page[R]{Records: make([]R, len(collected)), name: name, attempt: a}
			for i, r := range collected {
				p.Records[i], _ = r.(R) // if R is an interface type, nil becomes its zero value
			}
			return page(ctx, p, params)
		}, nil
	}
	return m
}
