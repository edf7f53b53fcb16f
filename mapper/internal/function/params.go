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

// EncodeParams encodes the parameters of a job as JSON for its record. A panic in a method of the
// parameters becomes an error.
func EncodeParams(params any) (_ json.RawMessage, err error) {
	defer Recovered(&err)
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

// maxParams is the largest size of the encoded parameters, in bytes. It keeps a job's record well
// below an entity's limit of 1 MiB.
const maxParams = 256 << 10

// DecodeParams decodes the parameters in a job's record. A field that the Go type does not have is
// an error, because a caller who sets it expects an effect. A panic in a method of the
// parameters becomes an error.
func DecodeParams(encoded json.RawMessage, params any) (err error) {
	defer Recovered(&err)
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

// ReadParams decodes and checks the parameters of a job that is about to start. If it would ignore
// or change a part of the input, it returns an error. It also calls the Validate method of the
// parameters, if there is one. A panic in a method of the parameters becomes an error.
func ReadParams[P any](encoded json.RawMessage, params *P) (err error) {
	defer Recovered(&err)
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

// Validate calls the Validate method of the parameters, or of the value to which they point.
// Without such a method it does nothing. A panic in the method becomes an error.
func Validate[P any](params *P) (err error) {
	defer Recovered(&err)
	type validator interface{ Validate() error }
	if v, ok := any(params).(validator); ok {
		return v.Validate()
	}
	if v, ok := any(*params).(validator); ok { // P is a pointer or an interface
		return v.Validate()
	}
	return nil
}

var (
	errMissing = errors.New("params: they are missing; none are written as {}")
	errNull    = errors.New("params: they are null; none are written as {}")
)

// hidesFields reports whether a type is a struct that has fields but exports none of them. JSON
// would lose all of its fields.
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
