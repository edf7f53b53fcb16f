// Package strictjson decodes JSON. It returns an error with the name of the value where
// encoding/json would silently lose or change something:
//
//   - a name that comes twice, because the last one would win
//   - a name that the struct does not have
//   - null for a value that can't be null, because the value would stay unchanged
//   - a number that the Go type can't hold exactly
//   - text that is not UTF-8
package strictjson

import (
	"bytes"
	"cmp"
	"encoding"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
)

// ErrMissing is the error for an empty text, in which there is no JSON value.
var ErrMissing = errors.New("there is no JSON value")

// Decode decodes a text with exactly one JSON value into the variable that v points to.
func Decode(text []byte, v any) error { return decode(text, v, false) }

// DecodeNulls decodes as [Decode] does, but accepts null for every value. It treats null as a
// missing value, because many programs write missing values as null.
func DecodeNulls(text []byte, v any) error { return decode(text, v, true) }

func decode(text []byte, v any, nulls bool) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return plain(text, err, reflect.TypeOf(v).Elem())
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("there is more than one JSON value")
	}
	return check(text, reflect.TypeOf(v).Elem(), nulls)
}

// Check returns an error for a text that [Decode] would refuse for every Go type.
func Check(text []byte) error {
	var raw json.RawMessage
	return Decode(text, &raw)
}

// plain returns an error of encoding/json in plainer words. If a value does not fit its Go type,
// the new error has the value's path in the text. encoding/json would also name embedded structs in
// the path, and has no path for types that decode themselves.
func plain(text []byte, err error, t reflect.Type) error {
	switch {
	case json.Valid(text): // so io.EOF would be an error of a type that decodes itself
		for _, find := range []finder{unfit, unknown} {
			if found := locate("", text, t, find); found != nil {
				return found
			}
		}
	case errors.Is(err, io.EOF):
		return ErrMissing
	case errors.Is(err, io.ErrUnexpectedEOF):
		return errors.New("the JSON ends too early")
	}
	if text, ours := strings.CutPrefix(err.Error(), "json: "); ours {
		return errors.New(text)
	}
	return err
}

// A finder returns an error if the value at a path has a fault: the text does not decode into t. It
// does not look into the value.
type finder func(path string, text []byte, t reflect.Type) error

// locate looks for a fault in a text and the parts of it, inner parts first, and returns the error
// of the first one. It visits fields in the order of their names. The argument path is the path of
// the text in the whole JSON value.
func locate(path string, text []byte, t reflect.Type, find finder) error {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if p := reflect.PointerTo(t); !p.Implements(ownType) && !p.Implements(textType) {
		if inner := locateInside(path, text, t, find); inner != nil {
			return inner
		}
	}
	return find(path, text, t)
}

// locateInside calls locate for each element of an array or each field of an object.
func locateInside(path string, text []byte, t reflect.Type, find finder) error {
	switch t.Kind() {
	case reflect.Struct, reflect.Map:
		var values map[string]json.RawMessage
		_ = json.Unmarshal(text, &values) // if it is no object, there are no fields
		for _, name := range slices.Sorted(maps.Keys(values)) {
			var inner reflect.Type
			if t.Kind() == reflect.Map {
				inner = t.Elem()
			} else if f := fieldOf(t, name); f == nil {
				continue
			} else if inner = f.Type; strings.Contains(f.Tag.Get("json"), ",string") {
				continue // in JSON this field is a string, no matter which Go type it has
			}
			if err := locate(join(path, name), values[name], inner, find); err != nil {
				return err
			}
		}
	case reflect.Slice, reflect.Array:
		var values []json.RawMessage
		_ = json.Unmarshal(text, &values) // if it is no array, there are no elements
		for i, value := range values {
			if err := locate(fmt.Sprintf("%s[%d]", path, i), value, t.Elem(), find); err != nil {
				return err
			}
		}
	}
	return nil
}

// unknown is a [finder] of names that a struct does not have. Its error lists the names that the
// struct has.
func unknown(path string, text []byte, t reflect.Type) error {
	if t.Kind() != reflect.Struct || own(t) || t == timeType {
		return nil
	}
	var values map[string]json.RawMessage
	_ = json.Unmarshal(text, &values) // if it is no object, there are no fields
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if fieldOf(t, name) == nil {
			return fmt.Errorf("unknown field %.200q%s", join(path, name), has(t))
		}
	}
	return nil
}

// has lists the names of a struct's fields, for an error. If there are none, it returns "". It
// leaves out fields with a tag "old", which has the present name of a renamed field.
func has(t reflect.Type) string {
	var names []string
	for _, f := range reflect.VisibleFields(t) {
		if name := nameOf(f); name != "" && f.Tag.Get("old") == "" {
			names = append(names, strconv.Quote(name))
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ": have " + strings.Join(names, ", ")
}

// unfit is a [finder] of values that do not fit their Go type.
func unfit(path string, text []byte, t reflect.Type) error {
	err := json.Unmarshal(text, reflect.New(t).Interface())
	if err == nil {
		return nil
	}
	wrong, base := new(json.UnmarshalTypeError), base64.CorruptInputError(0)
	switch {
	case t == timeType:
		return fmt.Errorf("%s is %.60s, and has to be a time: it is written as \"2026-10-24T00:00:00Z\"", shown(path),
			text)
	case t == keyType:
		return fmt.Errorf("%s is %.60s, and has to be a key: the text of Key.Encode", shown(path), text)
	case t == bytesType && errors.As(err, &base):
		return fmt.Errorf("%s is %.60s, and has to be %s", shown(path), text, form(t))
	case !errors.As(err, &wrong):
		return fmt.Errorf("%s can't be read: %w", shown(path), err)
	}
	article := "a"
	if strings.HasPrefix(wrong.Value, "a") || strings.HasPrefix(wrong.Value, "o") { // array or object
		article = "an"
	}
	return fmt.Errorf("%s is %s %s, and has to be %s", shown(path), article, wrong.Value, form(wrong.Type))
}

// form says how the values of a Go type are written in JSON.
func form(t reflect.Type) string {
	switch t {
	case waitType:
		return "an integer of nanoseconds"
	case bytesType:
		return "a string in base64"
	}
	switch k := t.Kind(); k {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return fmt.Sprintf("an integer (%v)", k)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return fmt.Sprintf("an integer of at least 0 (%v)", k)
	case reflect.Float32, reflect.Float64:
		return fmt.Sprintf("a number (%v)", k)
	case reflect.Slice, reflect.Array:
		return "a list"
	case reflect.Struct, reflect.Map:
		return "an object"
	}
	return fmt.Sprintf("a Go %v", t)
}

// check returns an error for a text that encoding/json accepts for the type t, but would not decode
// exactly. If nulls is set, null is allowed for every value.
func check(text []byte, t reflect.Type, nulls bool) error {
	if !utf8.Valid(text) {
		return errors.New("it is not UTF-8")
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	return (&reader{Decoder: d, text: text, nulls: nulls}).value("", t)
}

// A reader reads JSON that encoding/json accepts, token by token, and compares the tokens with the
// Go type.
type reader struct {
	*json.Decoder
	text  []byte
	nulls bool // whether null is accepted as a missing value
}

var (
	ownType   = reflect.TypeFor[json.Unmarshaler]()
	textType  = reflect.TypeFor[encoding.TextUnmarshaler]()
	anyType   = reflect.TypeFor[any]()
	timeType  = reflect.TypeFor[time.Time]()
	waitType  = reflect.TypeFor[time.Duration]()
	bytesType = reflect.TypeFor[[]byte]()
	keyType   = reflect.TypeFor[datastore.Key]()
)

// own reports whether a type has its own method to decode JSON, so that the form of its JSON is
// unknown. For a time it returns false, because the form of times is known.
func own(t reflect.Type) bool { return t != timeType && reflect.PointerTo(t).Implements(ownType) }

// value reads the next value, which has the given path, and compares it with its type t. A nil t
// means that the value belongs to a type that decodes itself.
func (r *reader) value(path string, t reflect.Type) error {
	token, err := r.Token()
	if err != nil {
		return err
	}
	for t != nil && t.Kind() == reflect.Pointer && token != nil {
		t = t.Elem()
	}
	if t != nil && own(t) {
		t = nil
	}
	switch token := token.(type) {
	case json.Delim:
		if token == '[' {
			return r.array(path, t)
		}
		return r.object(path, t)
	case nil:
		if !r.nulls {
			return checkNull(path, t)
		}
	case json.Number:
		if t == anyType && !Exact(token.String()) {
			return fmt.Errorf("%s is %.60s, which a float64 does not hold, and numbers in a Go any are float64: "+
				"declare it as "+
				"an int64 or a json.Number, or write it as a text", shown(path), token)
		}
	case string:
		return r.checkText(path)
	}
	return nil
}

// array reads the elements and the end of an array, and compares them with the type t.
func (r *reader) array(path string, t reflect.Type) error {
	most := -1
	if t != nil && t != anyType {
		if t.Kind() == reflect.Array {
			most = t.Len()
		}
		t = t.Elem()
	}
	n := 0
	for ; r.More(); n++ {
		if err := r.value(fmt.Sprintf("%s[%d]", path, n), t); err != nil {
			return err
		}
	}
	if _, err := r.Token(); err != nil {
		return err
	}
	if most >= 0 && n != most {
		return fmt.Errorf("%s has %d elements, and needs %d", shown(path), n, most)
	}
	return nil
}

// object reads the fields and the end of an object, and compares them with the type t.
func (r *reader) object(path string, t reflect.Type) error {
	seen := make(map[string]string)
	for r.More() {
		token, err := r.Token()
		if err != nil {
			return err
		}
		if err := r.checkText(path); err != nil {
			return err
		}
		name, _ := token.(string) // inside an object, this token is always a name
		is, inner := name, t
		if t != nil && t.Kind() == reflect.Struct {
			is = fold(name) // in the same way as encoding/json
			if inner = nil; fieldOf(t, name) != nil {
				inner = fieldOf(t, name).Type
			}
		} else if t != nil && t != anyType {
			inner = t.Elem()
			if n, err := strconv.ParseInt(name, 10, 64); err == nil && t.Key().Kind() != reflect.String {
				is = strconv.FormatInt(n, 10)
			}
		}
		within := join(path, name)
		if first, twice := seen[is]; twice {
			if first != name {
				return fmt.Errorf("%s comes twice, as %q and %q", shown(within), first, name)
			}
			return fmt.Errorf("%s comes twice", shown(within))
		}
		seen[is] = name
		if err := r.value(within, inner); err != nil {
			return err
		}
	}
	_, err := r.Token()
	return err
}

// fold returns the same text for all spellings of a name that encoding/json treats as the same
// field, such as "Name" and "NAME".
func fold(name string) string {
	return strings.Map(func(r rune) rune {
		least := r
		for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
			least = min(least, f)
		}
		return least
	}, name)
}

// checkText returns an error if the text that the reader has just read has half of a surrogate
// pair. encoding/json would replace this half by another character. The argument path is the path
// of the text, for the error.
func (r *reader) checkText(path string) error {
	end := r.InputOffset()
	from := bytes.LastIndexByte(r.text[:end-1], '"')
	for from > 0 && escaped(r.text, from) {
		from = bytes.LastIndexByte(r.text[:from], '"')
	}
	raw := r.text[from:end]
	for i := 0; i+6 <= len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		if raw[i+1] != 'u' {
			i++
			continue
		}
		unit := unitAt(raw, i)
		switch {
		case unit>>10 == 0xd800>>10 && unitAt(raw, i+6)>>10 == 0xdc00>>10:
			i += 11
		case unit>>11 == 0xd800>>11:
			return fmt.Errorf("a text in %s has half of a character, %s, which nothing can store", shown(path),
				raw[i:i+6])
		default:
			i += 5
		}
	}
	return nil
}

// escaped reports whether the character at an index of a text is escaped by a backslash. A
// backslash that is itself escaped does not count.
func escaped(text []byte, at int) bool {
	n := 0
	for at > 0 && text[at-1] == '\\' {
		at--
		n++
	}
	return n%2 == 1
}

// unitAt returns the UTF-16 unit of the \u escape at an index of a text. If there is no such
// escape, it returns 0.
func unitAt(raw []byte, at int) uint64 {
	if at+6 > len(raw) || raw[at] != '\\' || raw[at+1] != 'u' {
		return 0
	}
	n, _ := strconv.ParseUint(string(raw[at+2:at+6]), 16, 32) // succeeds, because the digits were checked
	return n
}

// checkNull returns an error for a null at a path, if a variable of type t can't be nil.
// encoding/json would leave such a variable unchanged, as if the value were missing.
func checkNull(path string, t reflect.Type) error {
	if t == nil {
		return nil
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Map, reflect.Slice, reflect.Interface:
		return nil
	}
	return fmt.Errorf("%s is null: leave it out, or give it a value", shown(path))
}

func shown(path string) string {
	if path == "" {
		return "the value"
	}
	return fmt.Sprintf("%.200q", path)
}

// join returns the path of an object's field: the object's path, a dot and the name.
func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// fieldOf returns the field of a struct into which encoding/json decodes a JSON name, or nil if
// there is none.
func fieldOf(t reflect.Type, name string) (found *reflect.StructField) {
	for _, f := range reflect.VisibleFields(t) {
		if n := nameOf(f); n != "" && strings.EqualFold(n, name) && (found == nil || len(f.Index) < len(found.Index)) {
			found = &f
		}
	}
	return found
}

// nameOf returns the name of a struct's field in JSON, or "" if encoding/json ignores the field.
func nameOf(f reflect.StructField) string {
	tag, _, _ := strings.Cut(f.Tag.Get("json"), ",")
	if tag == "-" || f.Anonymous && tag == "" && f.Type.Kind() != reflect.Interface || !f.IsExported() {
		return ""
	}
	return cmp.Or(tag, f.Name)
}

// Exact reports whether a float64 can hold a JSON number with all of its digits.
func Exact(number string) bool {
	f, err := strconv.ParseFloat(number, 64)
	if err != nil {
		return false
	}
	digits, exponent := digitsOf(number)
	if digits == "" || len(digits) > mostDigits {
		return digits == "" || f != 0
	}
	written := len(digits)
	if !strings.ContainsAny(number, ".eE") { // an integer, which may end in zeros
		written = exponent
	}
	held, power := digitsOf(strconv.FormatFloat(f, 'e', written-1, 64))
	return held == digits && power == exponent
}

// mostDigits is a number of significant digits. A number with more of them is not a float64, and
// not halfway between two of them.
const mostDigits = 800

// digitsOf returns a number's significant digits, without zeros at either end. The exponent is the
// power of ten of the first digit.
func digitsOf(number string) (digits string, exponent int) {
	mantissa, power, _ := strings.Cut(strings.ToLower(strings.TrimLeft(number, "+-")), "e")
	exponent, _ = strconv.Atoi(power) // an exponent that is too large for an int is too large for a float64
	whole, fraction, _ := strings.Cut(mantissa, ".")
	all := whole + fraction
	digits = strings.TrimLeft(all, "0")
	exponent += len(whole) - (len(all) - len(digits))
	if digits = strings.TrimRight(digits, "0"); digits == "" {
		return "", 0
	}
	return digits, exponent
}
