package property

import (
	"reflect"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
)

// An unsaved is a placeholder in a saved slice for an element that the Go client leaves out, so
// that the other elements keep their places. The client leaves out nil pointers to structs, and
// with omitempty also empty values.
type unsaved struct{}

func isUnsaved(v any) bool { _, ok := v.(unsaved); return ok }

// An omitted is a placeholder in an array for an empty value that omitempty leaves out, so that
// later values keep their places. The array has the values of one field in all structs of a
// flattened slice. If the array is not stored yet, the empty value is stored.
type omitted struct{ value any }

// complete gets the properties that the Go client saved for the struct v. If the client left out
// elements of a slice, complete adds a placeholder for each such element. It does not change its
// arguments.
func complete(properties []datastore.Property, v reflect.Value) []datastore.Property {
	if v.Kind() != reflect.Struct || slices.Contains(leaves, v.Type()) {
		return properties
	}
	fields, own := schemaOf(v.Type()).fields, false
	for i, p := range properties {
		f, ok := fields[p.Name]
		var value any
		changed := false
		if ok && !f.flatten {
			in, err := v.FieldByIndexErr(f.index)
			if err != nil {
				continue
			}
			value, changed = completed(p.Value, in)
		} else if column, is := p.Value.([]any); is {
			value, changed = completedColumn(column, p.Name, v)
		}
		if !changed {
			continue
		}
		if !own {
			properties, own = slices.Clone(properties), true
		}
		properties[i].Value = value
	}
	return properties
}

// completedColumn adds placeholders to a column of a flattened slice, so that it has a value for
// each struct of the slice. A column is an array with the values of one field in all these structs.
// The bool says whether placeholders were added.
func completedColumn(column []any, name string, v reflect.Value) (_ any, changed bool) {
	for outer, f := range schemaOf(v.Type()).fields {
		rest, inside := strings.CutPrefix(name, outer+".")
		if !inside || !f.flatten || !f.many || f.sub == nil {
			continue
		}
		cell, ok := f.sub.fields[rest]
		rows, err := v.FieldByIndexErr(f.index)
		if !ok || cell.many || err != nil || len(column) >= rows.Len() {
			continue
		}
		all := make([]any, rows.Len())
		for i := range all {
			row := rows.Index(i)
			if row.Kind() == reflect.Pointer {
				row = row.Elem()
			}
			if !row.IsValid() { // a nil pointer has no fields
				return column, false
			}
			in, err := row.FieldByIndexErr(cell.index)
			switch {
			case err != nil:
				return column, false
			case emptyField(in):
				all[i] = omitted{emptyOf(in)}
			case len(column) == 0:
				return column, false
			default:
				all[i], column = column[0], column[1:]
			}
		}
		return all, len(column) == 0
	}
	return column, false
}

// emptyOf returns the value as which an empty field is saved if it does not have omitempty.
func emptyOf(v reflect.Value) any {
	switch {
	case v.CanInt():
		return int64(0)
	case v.CanFloat():
		return 0.0
	case v.Kind() == reflect.String, v.Kind() == reflect.Bool, v.Type() == timeType:
		return plainValue(reflect.Zero(v.Type()).Convert(plainTypes[v.Kind()]).Interface())
	}
	return nil
}

var plainTypes = map[reflect.Kind]reflect.Type{
	reflect.String: reflect.TypeFor[string](), reflect.Bool: reflect.TypeFor[bool](), reflect.Struct: timeType,
}

func completed(saved any, v reflect.Value) (_ any, changed bool) {
	for v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface {
		if v.IsNil() {
			return saved, false
		}
		v = v.Elem()
	}
	switch x := saved.(type) {
	case *datastore.Entity:
		if x == nil {
			return saved, false
		}
		all := complete(x.Properties, v)
		if len(all) == 0 || &all[0] == &x.Properties[0] {
			return saved, false
		}
		return &datastore.Entity{Key: x.Key, Properties: all}, true
	case []any:
		if v.Kind() != reflect.Slice || len(x) > v.Len() {
			return saved, false
		}
		all, rest := make([]any, v.Len()), x
		for i := range all {
			if len(x) < v.Len() && emptyField(v.Index(i)) {
				all[i], changed = unsaved{}, true
				continue
			}
			if len(rest) == 0 {
				return saved, false
			}
			one, more := completed(rest[0], v.Index(i))
			all[i], rest, changed = one, rest[1:], changed || more
		}
		return all, changed && len(rest) == 0
	}
	return saved, false
}

// emptyField reports whether a value is empty, so that omitempty leaves it out.
func emptyField(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		t, ok := v.Interface().(time.Time)
		return ok && t.IsZero()
	case reflect.Float32, reflect.Float64:
		return v.Float() == 0
	}
	return v.IsZero()
}

// omitsSome reports whether the Go client may leave out elements of slices when it saves a field of
// type t. The argument tag is the field's tag.
func omitsSome(t reflect.Type, tag string, seen map[reflect.Type]bool) bool {
	isSlice := false
	for t.Kind() == reflect.Pointer || t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		isSlice = isSlice || t.Kind() == reflect.Slice
		t = t.Elem()
		if isSlice && t.Kind() == reflect.Pointer && t != keyType && t.Elem().Kind() == reflect.Struct {
			return true
		}
	}
	_, options, _ := strings.Cut(tag, ",")
	if isSlice && strings.Contains(options, "omitempty") {
		return true
	}
	if t.Kind() != reflect.Struct || slices.Contains(leaves, t) || seen[t] {
		return false
	}
	seen[t] = true
	for i := range t.NumField() {
		f := t.Field(i)
		if _, own, _ := strings.Cut(f.Tag.Get("datastore"), ","); isSlice && strings.Contains(options, "flatten") &&
			strings.Contains(own, "omitempty") {
			return true
		}
		if omitsSome(f.Type, f.Tag.Get("datastore"), seen) {
			return true
		}
	}
	return false
}

// valueOf returns the stored value that the Go client's Put would make from a saved value, without
// the elements that the client leaves out.
func valueOf(v any, noIndex bool) (*pb.Value, error) { return pbvalue.Of(withoutUnsaved(v), noIndex) }

// valueOf returns the stored value for a saved value. The client makes keys without a project, and
// the database stores them with one. So keys in the value get the project of the stored entity.
func (m merger) valueOf(value any, noIndex bool) (*pb.Value, error) {
	v, err := valueOf(value, noIndex)
	if err == nil && m.own.GetProjectId() != "" {
		m.atHome(v)
	}
	switch value.(type) {
	case *datastore.Key, []any, *datastore.Entity: // may contain keys that were not checked yet
		if err == nil {
			err = CheckText(v)
		}
	}
	return v, err
}

func (m merger) atHome(v *pb.Value) {
	if k := v.GetKeyValue(); k != nil {
		k.PartitionId = &pb.PartitionId{ProjectId: m.own.ProjectId, DatabaseId: m.own.DatabaseId,
			NamespaceId: k.GetPartitionId().GetNamespaceId()}
	}
	for _, el := range v.GetArrayValue().GetValues() {
		m.atHome(el)
	}
	for _, p := range v.GetEntityValue().GetProperties() {
		m.atHome(p)
	}
}

func withoutUnsaved(v any) any {
	switch x := v.(type) {
	case omitted:
		return x.value
	case []any:
		all := make([]any, 0, len(x))
		for _, el := range x {
			if !isUnsaved(el) {
				all = append(all, withoutUnsaved(el))
			}
		}
		return all
	case *datastore.Entity:
		if x == nil {
			return v
		}
		e := &datastore.Entity{Key: x.Key, Properties: slices.Clone(x.Properties)}
		for i, p := range e.Properties {
			e.Properties[i].Value = withoutUnsaved(p.Value)
		}
		return e
	}
	return v
}
