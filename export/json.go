package export

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"
	"unicode/utf8"
)

var (
	rawType    = reflect.TypeFor[json.RawMessage]()
	numberType = reflect.TypeFor[json.Number]()
)

// jsonLine returns a function that encodes a record as JSON. That function returns an error if
// encoding/json would change a value silently. This concerns invalid UTF-8, time zones whose offset
// has seconds, and values without exported fields.
func jsonLine[R any]() (line func(record any) ([]byte, error), revision string, err error) {
	t := reflect.TypeFor[R]()
	c := &jsonChecks{known: make(map[jsonType]*jsonCheck)}
	check, err := c.of(jsonType{t, true})
	if err != nil {
		return nil, "", err
	}
	if c.byPointer {
		revision = secondRevision
	}
	return func(record any) ([]byte, error) {
		r := new(R)
		if record != nil {
			*r = record.(R)
		}
		v := reflect.ValueOf(r).Elem() // addressable, so that methods with pointer receivers are called
		c := &jsonChecks{}
		if err := check.run(c, v); err != nil {
			return nil, err
		}
		line, err := json.Marshal(r)
		if !utf8.Valid(line) {
			err = errors.New("the MarshalJSON of a value returns text that is not valid UTF-8")
		}
		if err != nil {
			c.search = true // run the checks again, to find the field that has failed
			if found := check.run(c, v); found != nil {
				return nil, found
			}
			return nil, err
		}
		return line, nil
	}, revision, nil
}

// A jsonType is a Go type, and whether encoding/json can take the address of the value. That
// decides whether it calls methods with pointer receivers.
type jsonType struct {
	t    reflect.Type
	addr bool
}

// jsonChecks makes the checks for the types in a record, and keeps them in known. It also holds the
// state of a check while it runs.
type jsonChecks struct {
	known  map[jsonType]*jsonCheck
	depth  int
	search bool // whether to encode each value with its own MarshalJSON, to find the one that fails

	byPointer bool // whether a method with a pointer receiver is called that older builds did not call
}

var dynamic sync.Map // the checks of dynamic types in interfaces: a *jsonCheck by reflect.Type

// A jsonCheck returns an error for a value of a type that encoding/json would change or can't
// encode. Its function is nil if every value of the type is safe.
type jsonCheck struct {
	check func(c *jsonChecks, v reflect.Value) error
}

func (k *jsonCheck) run(c *jsonChecks, v reflect.Value) error {
	if k.check == nil {
		return nil
	}
	if c.depth++; c.depth > deepest {
		return errDeep
	}
	defer func() { c.depth-- }()
	return k.check(c, v)
}

func (c *jsonChecks) of(of jsonType) (*jsonCheck, error) {
	if k := c.known[of]; k != nil {
		return k, nil
	}
	k := new(jsonCheck)
	c.known[of] = k // record it before it is made, because types may be recursive
	var err error
	k.check, err = c.make(of.t, of.addr)
	return k, err
}

func (c *jsonChecks) make(t reflect.Type, addr bool) (func(c *jsonChecks, v reflect.Value) error, error) {
	switch t {
	case rawType:
		return checkRaw, nil
	case numberType:
		return checkNumber, nil
	case timeType:
		return func(_ *jsonChecks, v reflect.Value) error { return checkText(v.Interface().(time.Time)) }, nil
	}
	if own := ownMethod(t); own != (marshaler{}) {
		if !t.Implements(own.is) && !addr {
			return nil, fmt.Errorf("the %s of *%v is not called where %v is in a map or an interface: have it "+
				"be a pointer", own.method, t, t)
		}
		c.byPointer = c.byPointer || !t.Implements(own.is)
		return c.ofMethod(t, own.method)
	}
	switch t.Kind() {
	case reflect.Chan, reflect.Func, reflect.Complex64, reflect.Complex128, reflect.UnsafePointer:
		return nil, fmt.Errorf("%v has no JSON: give the field the tag `json:\"-\"`, or its type a method "+
			"MarshalJSON", t)
	case reflect.Float32, reflect.Float64:
		return checkFloat, nil
	case reflect.String:
		return checkString, nil
	case reflect.Interface:
		// the dynamic type of any value in it has MarshalText
		if t.Implements(textMarshaler) && !t.Implements(jsonMarshaler) {
			return checkOwnText, nil
		}
		return checkDynamic, nil
	case reflect.Pointer:
		k, err := c.of(jsonType{t.Elem(), true})
		return func(c *jsonChecks, v reflect.Value) error {
			if v.IsNil() {
				return nil
			}
			return k.run(c, v.Elem())
		}, err
	case reflect.Slice, reflect.Array:
		return c.ofList(t, addr)
	case reflect.Map:
		return c.ofMap(t)
	case reflect.Struct:
		return c.ofStruct(t, addr)
	}
	return nil, nil
}

// A marshaler is a method by which encoding/json encodes a value, and the interface that has the
// method.
type marshaler struct {
	method string
	is     reflect.Type
}

// ownMethod returns the method with which encoding/json encodes a type. It returns a zero value if
// the type has no such method. In that case the type's kind decides.
func ownMethod(t reflect.Type) marshaler {
	if t.Kind() == reflect.Interface {
		return marshaler{}
	}
	for _, own := range []marshaler{{"MarshalJSON", jsonMarshaler}, {"MarshalText", textMarshaler}} {
		switch {
		case t.Kind() == reflect.Pointer && t.Elem().Implements(own.is):
			return marshaler{} // a nil pointer needs no method: encoding/json writes null
		case t.Implements(own.is), reflect.PointerTo(t).Implements(own.is): // pointers to pointers have no methods
			return own
		}
	}
	return marshaler{}
}

func checkFloat(_ *jsonChecks, v reflect.Value) error {
	if f := v.Float(); math.IsNaN(f) || math.IsInf(f, 0) {
		return errors.New("it is NaN or infinite, which JSON does not have: write it as a pointer that " +
			"is nil, or as a text")
	}
	return nil
}

func checkString(_ *jsonChecks, v reflect.Value) error {
	if !utf8.ValidString(v.String()) {
		return errText
	}
	return nil
}

// checkOwnText checks the text of a value in an interface type that has the method MarshalText.
func checkOwnText(_ *jsonChecks, v reflect.Value) error {
	_, _, err := textOf(v, "json")
	return err
}

// checkDynamic checks a value in an interface by its dynamic type.
func checkDynamic(c *jsonChecks, v reflect.Value) error {
	if v.IsNil() {
		return nil
	}
	k, known := dynamic.Load(v.Elem().Type())
	if !known {
		types := &jsonChecks{known: make(map[jsonType]*jsonCheck)}
		of, err := types.of(jsonType{v.Elem().Type(), false})
		if err != nil {
			return err
		}
		k, _ = dynamic.LoadOrStore(v.Elem().Type(), of)
	}
	return k.(*jsonCheck).run(c, v.Elem())
}

// ofList returns the check for a slice or array type. The parameter addr says whether encoding/json
// can take the address of the list.
func (c *jsonChecks) ofList(t reflect.Type, addr bool) (func(c *jsonChecks, v reflect.Value) error, error) {
	if t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Uint8 {
		if p := reflect.PointerTo(t.Elem()); !p.Implements(jsonMarshaler) && !p.Implements(textMarshaler) {
			return nil, nil // encoding/json writes bytes as base64
		}
	}
	k, err := c.of(jsonType{t.Elem(), addr || t.Kind() == reflect.Slice})
	return func(c *jsonChecks, v reflect.Value) error {
		for i := range v.Len() {
			if err := k.run(c, v.Index(i)); err != nil {
				return inside(elementOf(i), err)
			}
		}
		return nil
	}, err
}

// ofMethod returns the check for a type that encodes itself by a method: MarshalJSON or
// MarshalText.
func (c *jsonChecks) ofMethod(t reflect.Type, method string) (func(c *jsonChecks, v reflect.Value) error, error) {
	r, err := routeOf(t, method, "json")
	if err != nil {
		return nil, err
	}
	if method == "MarshalText" {
		return func(_ *jsonChecks, v reflect.Value) error {
			_, _, err := textOf(v, "json")
			return err
		}, nil
	}
	var inner *jsonCheck
	if r.from == timeType || r.from == rawType || r.from.Kind() == reflect.Interface {
		inner, err = c.of(jsonType{r.from, false})
	}
	return func(c *jsonChecks, v reflect.Value) error {
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return nil
		}
		if len(r.index) > 0 {
			of, err := r.value(reflect.Indirect(v))
			if err == nil && inner != nil {
				err = inner.run(c, of)
			}
			if err != nil {
				return err
			}
		}
		if !c.search {
			return nil
		}
		if v.CanAddr() {
			v = v.Addr()
		}
		text, err := json.Marshal(v.Interface())
		if !utf8.Valid(text) {
			err = errText
		}
		return err
	}, err
}

func (c *jsonChecks) ofMap(t reflect.Type) (func(c *jsonChecks, v reflect.Value) error, error) {
	key := t.Key()
	texts := key.Kind() != reflect.String && key.Implements(textMarshaler)
	switch key.Kind() {
	case reflect.String, reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
		reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uintptr:
	default:
		if !texts {
			return nil, fmt.Errorf("%v has keys that JSON does not have: let them be texts, or numbers", t)
		}
	}
	if _, err := routeOf(key, "MarshalText", "json"); err != nil { // returns an error only for a struct with the method
		return nil, err
	}
	k, err := c.of(jsonType{t.Elem(), false})
	if err != nil {
		return nil, err
	}
	return func(c *jsonChecks, v reflect.Value) error {
		seen := make(map[string]bool)
		for each := v.MapRange(); each.Next(); {
			name := each.Key().String() // the name of a numeric key in an error is a placeholder
			if texts {
				text, there, err := textOf(each.Key(), "json")
				switch {
				case errors.Is(err, errText):
					return errTextKey
				case err != nil:
					return inside(someKey, err)
				case !there:
					return errNilKey
				}
				name = string(text)
				if seen[name] {
					return errSameKey
				}
				seen[name] = true
			}
			if !utf8.ValidString(name) {
				return errTextKey
			}
			if err := k.run(c, each.Value()); err != nil {
				return inside(someKey, err)
			}
		}
		return nil
	}, nil
}

func (c *jsonChecks) ofStruct(t reflect.Type, addr bool) (func(c *jsonChecks, v reflect.Value) error, error) {
	fields, err := fieldsOf(t, "json")
	if err != nil {
		return nil, err
	}
	if len(fields) == 0 && t.NumField() > 0 && !hasExported(t) {
		return nil, fmt.Errorf("%v has no exported fields, and all of its values would be {}: give it as a "+
			"text, or as bytes", t)
	}
	checks := make([]*jsonCheck, len(fields))
	for i, f := range fields {
		_, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if slices.Contains(strings.Split(options, ","), "omitzero") &&
			(f.Type.Implements(zeroMethod) || reflect.PointerTo(f.Type).Implements(zeroMethod)) {
			if _, err := routeOf(f.Type, "IsZero", "json"); err != nil {
				return nil, fmt.Errorf("field %s of %v: %w", goName(t, f.Index), t, err)
			}
		}
		in := addr
		// encoding/json can take the address of a value that a pointer leads to
		for j, at := 0, t; j < len(f.Index)-1; j++ {
			if at = at.Field(f.Index[j]).Type; at.Kind() == reflect.Pointer {
				at, in = at.Elem(), true
			}
		}
		if checks[i], err = c.of(jsonType{f.Type, in}); err != nil {
			return nil, fmt.Errorf("field %s of %v: %w", goName(t, f.Index), t, err)
		}
	}
	return func(c *jsonChecks, v reflect.Value) error {
		for i := range fields {
			if value, there := fields[i].value(v); there {
				if err := checks[i].run(c, value); err != nil {
					return inside(fields[i].Name, err)
				}
			}
		}
		return nil
	}, nil
}

func checkRaw(_ *jsonChecks, v reflect.Value) error {
	switch text := v.Bytes(); {
	case v.IsNil(): // encoding/json writes null
	case !utf8.Valid(text):
		return errText
	case !json.Valid(text):
		return errors.New("it is a json.RawMessage that is no JSON")
	}
	return nil
}

// checkNumber returns an error for an empty json.Number, which encoding/json would write as 0.
func checkNumber(_ *jsonChecks, v reflect.Value) error {
	text := v.String()
	if text == "" || text[0] != '-' && (text[0] < '0' || text[0] > '9') || strings.TrimSpace(text) != text ||
		!json.Valid([]byte(text)) {
		return errors.New("it is a json.Number that is no number")
	}
	return nil
}
