package source

import (
	"context"
	"errors"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
)

// errNoValue is a fault of the database.
var errNoValue = fault.Fatal(errors.New("the database returned an entity without the property that the query is ordered by"))

// results begins to read where entities are, or whole entities.
func (src Source) results(ctx context.Context, s query.Scan, whole bool) (*datastore.Iterator, error) {
	q, err := src.At.Query(s.Reading(whole))
	if err != nil {
		return nil, err
	}
	return src.Client.Run(ctx, q), nil
}

// next returns the next position of the scan, and the entity if those are read.
func next(s query.Scan, it *datastore.Iterator, whole bool) (p *keyspace.Position, entity datastore.PropertyList, err error) {
	var dst any
	if whole || s.Property != "" && !s.Fixed {
		dst = (*loaded)(&entity)
	}
	key, err := it.Next(dst)
	if err != nil {
		return nil, nil, err
	}
	p = keyspace.At(key)
	if s.Property == "" {
		return p, entity, nil
	}
	p.Valued, p.Value = true, s.Value
	if !s.Fixed {
		values := property.Indexed(entity, s.Property)
		if len(values) != 1 {
			return nil, nil, errNoValue
		}
		p.Value = values[0]
		if micros, ok := p.Value.(int64); ok && s.Times && !whole {
			if t := time.UnixMicro(micros).UTC(); keyspace.Storable(t) { // what is not, is an integer
				p.Value = t
			}
		}
	}
	return p, entity, nil
}
