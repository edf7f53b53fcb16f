package mapper

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// UpdateBatches defines an [Update] whose function gets up to size entities in one call. Use it for
// a service that takes many items in one request.
//
//	var Geocode = mapper.UpdateBatches("geocode", 100,
//		func(ctx context.Context, batch []*mapper.Entity[Address], _ mapper.NoParams) error {
//			var texts []string
//			for _, a := range batch {
//				texts = append(texts, a.Value.Text)
//			}
//			found, err := geocoder.Find(ctx, texts)
//			if err != nil {
//				return err // of the request
//			}
//			for i, a := range batch {
//				if found[i].Err != nil {
//					a.Fail(found[i].Err) // of this address
//					continue
//				}
//				a.Value.Position = found[i].Position
//			}
//			return nil
//		})
//
// The size is in [1, 1000]. A batch has entities of one page, in the order of their keys. It is
// smaller than size at the end of a page, and when entities are retried. So the result for an
// entity must not depend on the others of the batch.
//
// Everything that an [Update] promises holds for each entity: changes, puts, deletes and counts
// take effect once, in the order of keys, and nothing that others write is lost. If others have
// changed some entities, the function runs again on these. It also runs again on an entity that has
// read, by [Entity.Get], what an earlier entity of its batch puts: that entity comes in a later
// batch, too.
//
// [Entity.Fail] fails one entity. The others of its batch keep their results. An error or a panic
// fails the batch. Then the function runs again on each half, and so on, until the entities at
// fault are alone. Such entities are retried as in an [Update]. If the function fails on every part
// of a batch, it is at fault, and the page is retried as a whole. Four cases are special:
//
//   - [RetryAfter], for the batch or for some of its entities: the service refused them for now.
//     The job waits for the service, and calls the function again for these.
//   - [Entity.AwaitCall] returns an error, because the call would wait too long: the function runs
//     again on the whole batch, later. No attempt counts.
//   - [Skip] for the batch leaves all of its entities unchanged.
//   - A call takes more than StartOptions.EntityTimeout. Its page is retried with half of the
//     batch, until the entity that hangs is alone.
//
// Batches of a page run one after the other, unless the job has a Concurrency
// ([Mapper.WithConcurrency]), which counts batches. StartOptions.Rate counts entities.
func UpdateBatches[T, P any](
	name string, size int, fn func(ctx context.Context, batch []*Entity[T], params P) error,
) *Mapper[P] {
	return defineBatches(name, function.Update, size, fn)
}

// VisitBatches defines a [Visit] whose function gets up to size entities in one call. Use it for a
// service with a request for many items, such as a bulk index or a message queue. Batches and their
// errors are the same as in [UpdateBatches]. The function runs at least once for each entity. A
// repeated batch may have other entities, so give the service the [Entity.IdempotencyKey] of each
// entity.
func VisitBatches[T, P any](
	name string, size int, fn func(ctx context.Context, batch []*Entity[T], params P) error,
) *Mapper[P] {
	return defineBatches(name, function.Visit, size, fn)
}

func defineBatches[T, P any](
	name string, mode function.Mode, size int, fn func(context.Context, []*Entity[T], P) error,
) *Mapper[P] {
	var one func(context.Context, *Entity[T], P) error
	if fn != nil {
		one = func(ctx context.Context, e *Entity[T], params P) error { return fn(ctx, []*Entity[T]{e}, params) }
	}
	m := define(name, mode, one)
	if (size < 1 || size > record.MaxPageSize) && m.def.Err == nil {
		m.def.Err = fmt.Errorf("batches of %d entities: the size is not in [1, %d]", size, record.MaxPageSize)
	}
	m.def.BatchSize = size
	m.def.PrepareBatch = func(encoded json.RawMessage, keysOnly bool) (function.BatchFunc, error) {
		var params P
		if err := function.DecodeParams(encoded, &params); err != nil {
			return nil, err
		}
		return func(ctx context.Context, batch []function.Subject) ([]function.Answer, error) {
			return applyBatch(mode, keysOnly, batch, func(all []*Entity[T]) error { return fn(ctx, all, params) })
		}, nil
	}
	return m
}
