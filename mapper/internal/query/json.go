package query

import (
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/internal/strictjson"
	"github.com/scattermap/scattermap/internal/value"
)

type jsonFilter struct {
	Property     string          `json:"property"`
	Op           string          `json:"op"`
	Value        json.RawMessage `json:"value"`
	AllowAnyType bool            `json:"any_type,omitempty"`
}

// MarshalJSON implements json.Marshaler. See mapper.Filter for the form of the value.
func (f Filter) MarshalJSON() ([]byte, error) {
	f, err := f.normal()
	if err != nil {
		return nil, err
	}
	var encodes any = value.JSON{V: f.Value}
	if values, ok := f.Value.([]any); ok {
		list := make([]value.JSON, len(values))
		for i, v := range values {
			list[i].V = v
		}
		encodes = list
	}
	encoded, err := json.Marshal(encodes)
	if err != nil {
		return nil, err
	}
	return json.Marshal(jsonFilter{f.Property, f.Op, encoded, f.AllowAnyType})
}

// UnmarshalJSON implements json.Unmarshaler. It reads the output of MarshalJSON.
func (f *Filter) UnmarshalJSON(b []byte) error {
	var j jsonFilter
	if err := strictjson.Decode(b, &j); err != nil {
		return fmt.Errorf("a filter: %w", err)
	}
	*f = Filter{Property: j.Property, Op: j.Op, AllowAnyType: j.AllowAnyType}
	if j.Op == "in" {
		var list []value.JSON
		if err := json.Unmarshal(j.Value, &list); err != nil {
			return fmt.Errorf("the filter on %q: %w", f.Property, err)
		}
		values := make([]any, len(list))
		for i, v := range list {
			values[i] = v.V
		}
		f.Value = values
	} else {
		var v value.JSON
		if len(j.Value) == 0 {
			return fmt.Errorf("the filter on %q has no value; null is written as null", f.Property)
		}
		if err := json.Unmarshal(j.Value, &v); err != nil {
			return fmt.Errorf("the filter on %q: %w", f.Property, err)
		}
		f.Value = v.V
	}
	normal, err := f.normal()
	*f = normal
	return err
}
