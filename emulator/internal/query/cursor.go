package query

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// Parts of a cursor, which is the position after a result of a query. Its parts are:
//
//   - one byte: the version of this format
//   - four bytes: a hash of the query's kind, filters and orders
//   - four bytes: the length of the group in the result's sort key (see [Row])
//   - the sort key
//
// A cursor stays valid after later writes.
const (
	cursorVersion = 2
	cursorHead    = 9 // the number of bytes in a cursor before the sort key
)

func (q *Query) fingerprint() uint32 {
	h := fnv.New32a()
	h.Write([]byte(q.Namespace + "\x00" + q.Kind))
	for _, c := range q.anyOf {
		// fmt prints maps sorted by key, so the hash is always the same
		fmt.Fprintf(h, "%q%q%v%q", c.lo, c.hi, c.notKeys, c.equal)
		for _, iv := range c.between {
			fmt.Fprintf(h, "%q%q%q%v", iv.property, iv.lo, iv.hi, iv.not)
		}
	}
	for _, o := range q.orders {
		h.Write([]byte{0})
		h.Write([]byte(o.Property))
		if o.Descending {
			h.Write([]byte{1})
		}
	}
	return h.Sum32()
}

// Cursor returns the cursor of the position after a row.
func (q *Query) Cursor(r Row) []byte {
	c := append(make([]byte, 0, cursorHead+len(r.SortKey)), cursorVersion)
	c = binary.BigEndian.AppendUint32(c, q.print)
	c = binary.BigEndian.AppendUint32(c, uint32(r.Group))
	return append(c, r.SortKey...)
}

func (q *Query) parseCursors(start, end []byte) (err error) {
	if q.After, q.AfterGroup, err = q.parseCursor("start_cursor", start); err != nil {
		return err
	}
	q.Bounded = len(end) > 0
	q.Until, _, err = q.parseCursor("end_cursor", end)
	return err
}

func (q *Query) parseCursor(name string, c []byte) (sortKey, group string, err error) {
	const groupAt = 5
	switch {
	case len(c) == 0:
		return "", "", nil
	case len(c) < cursorHead || c[0] != cursorVersion || binary.BigEndian.Uint32(c[1:]) != q.print:
		return "", "", model.Invalid("the %s is not one of this query", name)
	}
	sortKey = string(c[cursorHead:])
	n := binary.BigEndian.Uint32(c[groupAt:])
	if uint64(n) > uint64(len(sortKey)) {
		return "", "", model.Invalid("the %s is damaged", name)
	}
	return sortKey, sortKey[:n], nil
}
