package mapper

import (
	"cloud.google.com/go/datastore"
)

// A scan is a Datastore query whose results come in the order of their positions. A range of
// keys is one.
type scan struct {
	query *datastore.Query
}

// scans returns the scans that together, one after the other, find the entities of a range.
func (q Query) scans(start, end *position) []scan {
	d := datastore.NewQuery(q.Kind).Namespace(q.Namespace).Order("__key__")
	if start != nil {
		d = d.FilterField("__key__", ">=", start.Key)
	}
	if end != nil {
		d = d.FilterField("__key__", "<", end.Key)
	}
	return []scan{{query: d}}
}

// reading returns the query that reads where entities are, or whole entities.
func (s scan) reading(whole bool) *datastore.Query {
	if whole {
		return s.query
	}
	return s.query.KeysOnly()
}

// next returns the next position of the scan, and the entity if those are read.
func (s scan) next(it *datastore.Iterator, whole bool) (p *position, entity datastore.PropertyList, err error) {
	var dst any
	if whole {
		dst = &entity
	}
	key, err := it.Next(dst)
	if err != nil {
		return nil, nil, err
	}
	return positionOf(key), entity, nil
}
