package dsemu

import (
	"slices"
	"strings"
)

// A hit is one result of a query.
type hit struct {
	version version
	sortKey string
}

// property returns the property whose index a scan would start from, if any.
func (q *query) property() (string, bool) {
	if len(q.equal) == 0 || q.byScatter() {
		return "", false
	}
	return q.equal[0].property, true
}

// scan visits the results as of a time, in order, until visit returns false.
//
// It starts where the range starts: in the scatter order, among the entries of
// the first equality's value, or among the keys. Only an order by other
// properties collects the results and sorts them.
func (q *query) scan(k *kind, at int64, visit func(hit) bool) {
	if k == nil {
		return
	}
	inOrder, descending := q.byKey()
	inOrder = inOrder || q.byScatter()
	var collected []hit
	try := func(r *record) bool {
		v, ok := r.at(at)
		if !ok {
			return true
		}
		sortKey, ok := q.match(r, v)
		if !ok || sortKey <= q.after {
			return true
		}
		if q.until != "" && sortKey > q.until {
			return !inOrder
		}
		if inOrder {
			return visit(hit{v, sortKey})
		}
		collected = append(collected, hit{v, sortKey})
		return true
	}
	switch property, equal := q.property(); {
	case q.byScatter():
		k.scatter.Ascend(q.after, func(_ string, r *record) bool { return try(r) })
		return
	case equal && !descending && k.index(property) != nil:
		q.scanIndex(k.index(property), inOrder, try)
	case descending && inOrder:
		q.scanDown(k, try)
	default:
		k.records.Ascend(q.start(inOrder), func(path string, r *record) bool {
			return (q.hi == "" || path < q.hi) && try(r)
		})
	}
	if inOrder {
		return
	}
	slices.SortFunc(collected, func(a, b hit) int { return strings.Compare(a.sortKey, b.sortKey) })
	for _, h := range collected {
		if !visit(h) {
			return
		}
	}
}

// start is the path at which a scan upwards begins.
func (q *query) start(inOrder bool) string {
	if inOrder {
		return max(q.lo, q.after)
	}
	return q.lo
}

func (q *query) scanIndex(idx *index, inOrder bool, try func(*record) bool) {
	value := q.equal[0].form
	idx.entries.Ascend(value+q.start(inOrder), func(entry string, r *record) bool {
		return strings.HasPrefix(entry, value) && (q.hi == "" || r.path < q.hi) && try(r)
	})
}

func (q *query) scanDown(k *kind, try func(*record) bool) {
	down := func(path string, r *record) bool { return path >= q.lo && try(r) }
	switch {
	case q.after != "":
		k.records.Descend(string(invert([]byte(q.after), 0)), down)
	case q.hi != "":
		k.records.Descend(q.hi, down)
	default:
		k.records.Reverse(down)
	}
}
