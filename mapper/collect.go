package mapper

import (
	"context"
	"encoding/json"
	"errors"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/function"
)

// A Page is what the first function of a [VisitPages] has made of the entities of a page, in the
// hands of the second one, before the page is committed. It belongs to one attempt: after the
// function has returned its methods panic. They can be called concurrently.
type Page[R any] struct {
	// Records are in the order of their entities. There is at least one.
	Records []R

	name    string
	attempt *function.Attempt
}

// UniqueName returns a name for what the function makes of the page: no other attempt, page or job
// has the same. It is made of hexadecimal digits, which are spread evenly, and of letters, digits
// and '-' behind them.
func (p *Page[R]) UniqueName() string { return p.name }

// RunID returns what tells this job from all others, also from a later one of the same ID:
// [Completion.RunID] returns the same.
func (p *Page[R]) RunID() string { return p.attempt.Job() }

// Count adds n to the job's counter of a name, together with the page's commit, see [Entity.Count].
func (p *Page[R]) Count(name string, n int64) { p.attempt.Count(name, n) }

// Put saves an entity together with the page's commit, exactly once: a struct pointer or a
// datastore.PropertyLoadSaver. The key may be incomplete. A page may put as much as a commit can
// hold, less some KiB: 499 entities, and 8 MiB.
func (p *Page[R]) Put(key *datastore.Key, src any) { p.attempt.Put(key, src) }

// Delete deletes an entity together with the page's commit.
func (p *Page[R]) Delete(key *datastore.Key) { p.attempt.Delete(key) }

// OnRollback has f called if the page is not committed, so that what the function made elsewhere
// can be taken away: because it fails, or because another delivery has done the page. It is not
// called if the process dies, nor if the function takes too long: whoever has to find all that is
// left looks for what no commit knows of.
func (p *Page[R]) OnRollback(f func(context.Context)) { p.attempt.OnLost(f) }

// VisitPages defines a mapper that writes records elsewhere, a page at a time: a file, a batch of
// rows, a request with many messages. Its first function makes a record of each entity, as a
// [Visit] does, with the same attempts and failures; one that returns [Skip] makes none. Its second
// function gets the records of a page, and writes them under the name of the page. What it puts and
// counts is committed together with the page: so of all that was written, what was put names
// exactly what counts, once for each entity.
//
// The second function takes up to 30 s, and may run several times for a page. Its error, or its
// panic, has the page tried again as a whole, as often as an entity would be, and then the job
// fails; one marked by [Permanent] fails it at once, and [Job.Resume] goes on. A page ends behind 4
// MiB of entities: so much is in memory, for each task.
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
				p.Records[i], _ = r.(R) // a nil of an interface is the zero value
			}
			return page(ctx, p, params)
		}, nil
	}
	return m
}
