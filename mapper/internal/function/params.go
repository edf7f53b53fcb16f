package function

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"

	"github.com/scattermap/scattermap/internal/strictjson"
)

// EncodeParams encodes parameters for a job's record.
func EncodeParams(params any) (json.RawMessage, error) {
	encoded, err := json.Marshal(params)
	switch {
	case err != nil:
		return nil, fmt.Errorf("params: %w", err)
	case len(encoded) > maxParams:
		return nil, fmt.Errorf("params: they take %d bytes, above the maximum of %d", len(encoded), maxParams)
	case string(encoded) == "{}" && hidesFields(reflect.TypeOf(params)):
		return nil, fmt.Errorf("params: %T encodes to {}: its fields are not exported", params)
	}
	return encoded, nil
}

// maxParams keeps a job's record well below the 1 MiB of an entity.
const maxParams = 256 << 10

// DecodeParams decodes parameters. A field that P does not have is an error:
// somebody expects an effect of it.
func DecodeParams(encoded json.RawMessage, params any) error {
	d := json.NewDecoder(bytes.NewReader(encoded))
	d.DisallowUnknownFields()
	switch err := d.Decode(params); {
	case errors.Is(err, io.EOF):
		return errMissing
	case err != nil:
		return fmt.Errorf("params: %w", err)
	case string(bytes.TrimSpace(encoded)) == "null":
		return errNull
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("params: more than one JSON value")
	}
	return nil
}

// ReadParams decodes the parameters of a job that is about to start, and checks them: nothing is as
// good as not there, or becomes another value, without a word; and they are what their own
// Validate, if they have one, takes.
func ReadParams[P any](encoded json.RawMessage, params *P) error {
	if string(bytes.TrimSpace(encoded)) == "null" {
		return errNull
	}
	switch err := strictjson.Decode(encoded, params); {
	case errors.Is(err, strictjson.ErrMissing):
		return errMissing
	case err != nil:
		return fmt.Errorf("params: %w", err)
	}
	if err := Validate(params); err != nil {
		return fmt.Errorf("params: %w", err)
	}
	return nil
}

// Validate calls the method Validate that parameters have, or what they point to.
func Validate[P any](params *P) (err error) {
	defer Recovered(&err)
	type validator interface{ Validate() error }
	if v, ok := any(params).(validator); ok {
		return v.Validate()
	}
	if v, ok := any(*params).(validator); ok { // a pointer, or an interface
		return v.Validate()
	}
	return nil
}

var (
	errMissing = errors.New("params: they are missing; none are written as {}")
	errNull    = errors.New("params: they are null; none are written as {}")
)

// hidesFields reports whether a type is a struct with fields, of which JSON sees
// none.
func hidesFields(t reflect.Type) bool {
	if t == nil || t.Kind() != reflect.Struct || t.NumField() == 0 {
		return false
	}
	for i := range t.NumField() {
		if f := t.Field(i); f.IsExported() || f.Anonymous {
			return false
		}
	}
	return true
}
