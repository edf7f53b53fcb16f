package query

import (
	"encoding/binary"
	"hash/fnv"
	"slices"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A cursor is a position among the rows of a query: before all rows, or beside a row. It has the
// values by which this row sorts, and stays valid after later writes. Its parts are:
//
//   - one byte: the version of this format
//   - four bytes: a hash of the namespace and of the properties in the query's orders
//   - one byte: which side of the row, see below
//   - the ordered forms of the row's values, and of its key
//
// In a query with distinct-on, a cursor is beside a whole group of rows, and has only the values
// that the group shares.
//
// As in production, a cursor does not depend on the query's filters, nor on the directions of its
// orders. In a query with reversed orders, a cursor leads back over the rows before it.
const (
	cursorVersion = 3
	cursorHead    = 6 // the number of bytes in a cursor before the forms
)

// Sides of a row on which a cursor can be. They refer to ascending order by the first property.
const (
	atStart  byte = iota // before all rows, whatever the directions
	afterRow             // after the row
	beforeRow
)

// sorted returns the orders that determine the position of a row, with the key at the end.
func (q *Query) sorted() []store.Order {
	if q.ordered(model.KeyProperty) {
		return q.orders
	}
	return append(q.orders[:len(q.orders):len(q.orders)], store.Order{Property: model.KeyProperty})
}

// positioned returns the orders whose values are in the query's cursors.
func (q *Query) positioned() []store.Order {
	if q.Distinct > 0 {
		return q.orders[:q.Distinct]
	}
	return q.sorted()
}

func (q *Query) fingerprint() uint32 {
	h := fnv.New32a()
	h.Write([]byte(q.Namespace))
	if q.Distinct > 0 {
		h.Write([]byte("\x00" + q.Kind)) // other cursors have a key, which has the kind
	}
	for _, o := range q.positioned() {
		h.Write([]byte("\x00" + o.Property))
	}
	return h.Sum32()
}

// Cursor returns the cursor of the position after a row.
func (q *Query) Cursor(r Row) []byte {
	c := q.cursor(afterRow, len(r.SortKey))
	orders, key := q.positioned(), r.SortKey
	if q.Distinct > 0 {
		key = key[:r.Group]
	}
	if !slices.ContainsFunc(orders, func(o store.Order) bool { return o.Descending }) {
		return append(c, key...)
	}
	if orders[0].Descending {
		c[cursorHead-1] = beforeRow
	}
	// rest is what remains of the sort key, and inverted is the whole key with its bytes inverted.
	rest, inverted := key, ""
	for _, o := range orders {
		if !o.Descending {
			n := len(rest) - len(cut(o, rest))
			c, rest = append(c, rest[:n]...), rest[n:]
			continue
		}
		if len(inverted) < len(rest) {
			inverted = collate.Invert(key)
		}
		form := inverted[len(inverted)-len(rest):]
		n := len(form) - len(cut(o, form))
		c, rest = append(c, form[:n]...), rest[n:]
	}
	return c
}

// cursor returns the head of a cursor, with room for size more bytes.
func (q *Query) cursor(side byte, size int) []byte {
	c := append(make([]byte, 0, cursorHead+size), cursorVersion)
	return append(binary.BigEndian.AppendUint32(c, q.print), side)
}

// cut returns the rest of form after the value at its start, which is the value of an order.
// It returns form itself if there is no such value.
func cut(o store.Order, form string) string {
	var rest string
	ok := true
	switch {
	case o.Property == model.KeyProperty:
		_, rest, ok = collate.CutPath(form)
	case o.Property == ScatterProperty && len(form) > store.ScatterSize:
		rest = form[store.ScatterSize:]
	default:
		rest, ok = collate.CutValue(form)
	}
	if !ok {
		return form
	}
	return rest
}

// nothing is a bound below all rows.
const nothing = "\x00"

func (q *Query) parseCursors(start, end []byte) error {
	var err error
	if q.From, err = q.parseCursor("start_cursor", start); err != nil {
		return err
	}
	if q.To, err = q.parseCursor("end_cursor", end); err != nil {
		return err
	}
	if len(end) > 0 && q.To == "" {
		q.To = nothing
	}
	if q.Start = start; len(start) == 0 {
		q.Start = q.cursor(atStart, 0)
	}
	return nil
}

// parseCursor returns the bound of the rows after a cursor: their sort keys are at least this
// bound. It is empty if there is no cursor, or if it is before all rows.
func (q *Query) parseCursor(name string, c []byte) (bound string, err error) {
	switch {
	case len(c) == 0:
		return "", nil
	case len(c) < cursorHead || c[0] != cursorVersion || c[cursorHead-1] > beforeRow:
		return "", model.Invalid("the %s is damaged", name)
	case binary.BigEndian.Uint32(c[1:]) != q.print:
		return "", model.Invalid("the %s does not match the query: it is for another kind or namespace, or for other "+
			"orders", name)
	case c[cursorHead-1] == atStart && len(c) == cursorHead:
		return "", nil
	}
	orders, rest := q.positioned(), string(c[cursorHead:])
	for _, o := range orders {
		tail := cut(o, rest)
		if len(tail) == len(rest) {
			return "", model.Invalid("the %s is damaged", name)
		}
		form := rest[:len(rest)-len(tail)]
		if kind, _, _ := collate.CutPath(form); o.Property == model.KeyProperty && q.Kind != "" && kind != q.Kind {
			return "", model.Invalid("the %s is for the kind %.100q, and the query for %.100q", name, kind, q.Kind)
		}
		bound, rest = bound+store.Directed(o, form), tail
	}
	switch after := (c[cursorHead-1] == afterRow) != orders[0].Descending; {
	case rest != "":
		return "", model.Invalid("the %s is damaged", name)
	case after && q.Distinct > 0:
		return behind(bound), nil
	case after:
		return bound + "\x00", nil
	}
	return bound, nil
}
