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
// The size is in [1, 1000]. A batch has entities of one page, in the order of their keys. At the
// end of a page, and for retries, it may be smaller than size. So the result for an entity must not
// depend on the others in the batch.
//
// For each entity, the promises of an [Update] hold. If others have changed some entities of a
// batch, the function runs again on these. So read what an entity's result depends on by the
// [Entity.Get] of this entity, not of another one in the batch. If one entity of a batch reads what
// an earlier one puts, the function runs again on the later one, in another batch.
//
// [Entity.Fail] fails one entity; the others in its batch keep their results. If the function
// returns an error or panics, the whole batch has failed. Then the function runs again on each
// half, and so on, until the entities at fault are alone. Such entities are retried as in an
// [Update]. If the function fails on every part of a batch, the function is at fault, and the page
// is retried as a whole. Four cases are special:
//
//   - If an error of the batch or of some entities is marked by [RetryAfter], the job waits for the
//     service. Then it calls the function again for these entities.
//   - If [Entity.AwaitCall] returns an error because the call would wait too long, the function
//     runs again on the whole batch later. If the batch has already made calls, or needs more calls
//     than the rate can give, the page is retried with half of the batch. No attempt counts.
//   - If the function returns [Skip], all entities of the batch stay unchanged.
//   - If a call takes longer than StartOptions.EntityTimeout, the page is retried with a batch of
//     half the size, and so on, until the entity that hangs is alone.
//
// Batches of a page run one after the other. [Mapper.WithConcurrency] sets how many batches run at
// once. EntitiesPerSecond in a [Rate] counts entities.
func UpdateBatches[T, P any](
	name string, size int, fn func(ctx context.Context, batch []*Entity[T], params P) error,
) *Mapper[P] {
	return defineBatches(name, function.Update, size, fn)
}

// VisitBatches defines a [Visit] whose function gets up to size entities in one call. Use it for a
// service with a request for many items, such as a bulk index or a message queue. Batches and
// errors are treated as in [UpdateBatches]. The function runs at least once for each entity. When
// it runs again for an entity, the batch may consist of other entities. So send the service the
// [Entity.IdempotencyKey] of each entity.
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
