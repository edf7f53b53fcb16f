package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// Limits of the checks that the start of a job makes. checkKinds looks for entities in up to
// mostNamespaces namespaces. checkTypes reads values in up to mostTyped pairs of kind and
// namespace.
const (
	mostNamespaces = 1000
	mostTyped      = 20
)

// checkKinds returns an error if one of the query's kinds has no entity in any of the query's
// namespaces, because the kind's name may be misspelt.
func (src Source) checkKinds(ctx context.Context, q query.Query) error {
	for _, kind := range q.AllKinds() {
		found, err := src.anyOf(ctx, q, kind)
		if err != nil {
			return err
		}
		if !found {
			where := "in the default namespace"
			if len(q.Namespaces) > 0 || q.AllNamespaces {
				where = "in any of the query's namespaces"
			} else if q.Namespace != "" {
				where = fmt.Sprintf("in the namespace %q", q.Namespace)
			}
			return setting.Errorf("%w: the kind %q has no entities %s: check the kind, the project and the database; "+
				"if there may be none, set StartOptions.AllowEmpty", fault.ErrArguments, kind, where)
		}
	}
	return nil
}

// anyOf reports whether a kind has an entity in one of the query's namespaces. It searches up to
// mostNamespaces of them. If it finds none, and there are more namespaces, it returns true, because
// the others may have one.
func (src Source) anyOf(ctx context.Context, q query.Query, kind string) (bool, error) {
	next := src.namespaces(ctx, q, "")
	// Most kinds have an entity in the first namespace.
	for looked, at := 0, 1; looked < mostNamespaces; looked, at = looked+at, Parallel {
		group, gctx := errgroup.WithContext(ctx)
		var found atomic.Bool
		var namespace string
		var more bool
		var err error
		for range at {
			if namespace, more, err = next(); err != nil || !more {
				break
			}
			in := datastore.NewQuery(kind).Namespace(namespace).KeysOnly().Limit(1)
			group.Go(func() error {
				e, err := src.one(gctx, in)
				if e != nil {
					found.Store(true)
				}
				return err
			})
		}
		if err = cmp.Or(group.Wait(), err); err != nil || found.Load() || !more {
			return found.Load(), err
		}
	}
	return true, nil
}

// checkTypes returns an error if the values in the query's filters have other types than the stored
// values. Unless absent is set, it also returns an error if no entity has a filtered property, or
// the property in ShardBy, in an index.
func (src Source) checkTypes(ctx context.Context, q query.Query, absent bool) error {
	// If a filter is on the property in ShardBy, the check of that filter is enough.
	sharded := !absent && q.ShardBy != "" && !slices.ContainsFunc(q.Filters, func(f query.Filter) bool {
		return f.Property == q.ShardBy
	})
	if len(q.Filters) == 0 && !sharded {
		return nil
	}
	group, gctx := errgroup.WithContext(ctx)
	group.SetLimit(Parallel)
	next := src.Spaces(ctx, q, nil, nil)
	var mu sync.Mutex
	// The properties that exist, and whether all kinds and namespaces were checked.
	there, all := make(map[string]bool), false
	note := func(property string, known bool) {
		mu.Lock()
		defer mu.Unlock()
		there[property] = there[property] || known
	}
	for range mostTyped {
		s, ok, err := next()
		if err != nil {
			return cmp.Or(group.Wait(), err)
		}
		if all = !ok; all {
			break
		}
		for _, c := range q.In(s).Comparisons() {
			group.Go(func() error {
				known, err := src.checkComparison(gctx, c)
				note(c.Property, known)
				return err
			})
		}
		if sharded {
			group.Go(func() error {
				e, err := src.one(gctx, q.In(s).AnySharded())
				note(q.ShardBy, e != nil)
				return unserved(err)
			})
		}
	}
	if err := group.Wait(); err != nil || absent || !all {
		return err
	}
	for property, known := range there {
		switch {
		case known:
		case sharded && property == q.ShardBy:
			return setting.Errorf("%w: Query.ShardBy: no entity has an indexed property %q, so the job would process "+
				"none: if its name is right, it is indexed, and there may be none, set StartOptions.AllowEmpty",
				fault.ErrArguments, property)
		default:
			return setting.Errorf("%w: Query.Filters: no entity has an indexed property %q, so a filter by it finds "+
				"none: if its name is right, it is indexed, and there may be none, set StartOptions.AllowEmpty",
				fault.ErrArguments, property)
		}
	}
	return nil
}

// checkComparison returns an error if the values in the query have other types than the stored
// values of the property. An index sorts values by type first. So the first and the last entity
// that satisfy the comparison show the types. If no entity satisfies it, checkComparison reads the
// first and the last entity with any value. The bool known says whether any entity has the property
// in an index.
func (src Source) checkComparison(ctx context.Context, c query.Comparison) (known bool, err error) {
	ends := func(of func(greatest bool) *datastore.Query, passes bool) (values []any, err error) {
		var entities [2]*pb.Entity
		group, gctx := errgroup.WithContext(ctx)
		for i := range entities {
			group.Go(func() (err error) {
				entities[i], err = src.one(gctx, of(i == 1))
				return err
			})
		}
		if err := group.Wait(); err != nil {
			return nil, unserved(err)
		}
		for i, entity := range entities {
			if entity == nil {
				return nil, nil
			}
			if v, ok := c.ValueOf(entity, passes, i == 1); ok {
				values = append(values, v)
			}
		}
		return values, nil
	}
	if c.Ranges() {
		passing, err := ends(c.Passing, true)
		if err != nil {
			return false, err
		}
		for _, v := range passing {
			if err := c.CheckPassing(v); err != nil {
				return true, err
			}
		}
		if len(passing) > 0 {
			return true, nil
		}
	}
	switch stored, err := ends(c.Stored, false); {
	case err != nil:
		return false, err
	case len(stored) == 2:
		return true, c.CheckStored(stored[0], stored[1])
	}
	null, err := src.one(ctx, c.Null())
	return null != nil, unserved(err)
}

// one returns the first result of a query, or nil if there is none.
func (src Source) one(ctx context.Context, d *datastore.Query) (*pb.Entity, error) {
	d, err := src.At.Query(d)
	if err != nil {
		return nil, err
	}
	ctx, results := wire.Reading(ctx)
	key, err := src.Client.Run(ctx, d).Next(new(loaded))
	switch {
	case errors.Is(err, iterator.Done):
		return nil, nil
	case err != nil:
		return nil, err
	}
	if e := results.Of(key).GetEntity(); e != nil {
		return e, nil
	}
	return nil, errUntaken
}
