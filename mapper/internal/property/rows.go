package property

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/value"
)

// A flattened slice of structs is stored as one array for each field of the structs. This file
// calls such an array a column, and a struct a row, as in a table. A stored column that the Go type
// does not declare is recognized only by its name.

var errOutOfStep = errors.New("it has a value for each struct of a flattened slice, the Go type does not declare it, " +
	"and structs were moved or removed: declare it, or change them in place")

// inStep returns an error if a function has moved or removed structs of a flattened slice, and the
// Go type does not declare the whole slice. Such a slice is stored as one array (column) for each
// field of the structs. An undeclared column stays as stored, so its values would then belong to
// other structs. A nil schema has no flattened slices.
func (s *schema) inStep(stored *pb.Entity, before, after []datastore.Property) error {
	if s == nil || !s.flattens {
		return nil
	}
	type change struct {
		was, is int
		stay    bool
	}
	changes := make(map[string]change) // by slice
	for _, name := range slices.Sorted(maps.Keys(stored.GetProperties())) {
		slice := s.slice(name, false)
		if slice == "" || s.declares(name) {
			continue
		}
		c, known := changes[slice]
		if !known {
			was, is := s.rows(before, slice), s.rows(after, slice)
			c = change{len(was), len(is), stay(was, is)}
			changes[slice] = c
		}
		column := stored.Properties[name]
		switch more := c.is > c.was && len(value.Elements(column)) > c.was; {
		case column.GetArrayValue() == nil && c.was != 1: // it is no column of the slice
		case more, !c.stay:
			return fmt.Errorf("property %q: %w", name, errOutOfStep)
		}
	}
	return nil
}

// stay reports whether a change of a list has moved no element: each element after the change (in
// is) was at the same place before (in was), or is new.
func stay(was, is []any) bool {
	if len(is) < len(was) {
		return false
	}
	from, kept := placesOf(was, is), make([]bool, len(is))
	for _, at := range from {
		if at >= 0 {
			kept[at] = true
		}
	}
	for i, at := range from {
		if at != i && (at >= 0 || kept[i]) {
			return false
		}
	}
	return true
}

// rows returns the structs of a flattened slice. It puts each together from the columns in
// properties, as an entity.
func (s *schema) rows(properties []datastore.Property, slice string) (rows []any) {
	for _, p := range properties {
		if s.slice(p.Name, false) != slice {
			continue
		}
		for i, v := range valuesIn(p.Value) {
			if i == len(rows) {
				rows = append(rows, new(datastore.Entity))
			}
			row := rows[i].(*datastore.Entity)
			row.Properties = append(row.Properties, datastore.Property{Name: p.Name, Value: v})
		}
	}
	return rows
}

// slice returns the name of the flattened slice to which the property with this name belongs, or ""
// if it belongs to none. The argument flat says that the schema s itself belongs to a flattened
// field.
func (s *schema) slice(name string, flat bool) string {
	for outer, f := range s.fields {
		rest, inside := strings.CutPrefix(name, outer+".")
		if !inside || !f.flatten && !flat {
			continue
		}
		if f.many {
			return outer
		}
		if f.sub != nil {
			if inner := f.sub.slice(rest, true); inner != "" {
				return outer + "." + inner
			}
		}
	}
	return ""
}
