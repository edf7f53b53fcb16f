package record

import (
	"encoding/json"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// An Example is what a rehearsal would do to an entity.
type Example struct {
	Key *datastore.Key `json:"key"`
	// "change", "delete", "put another entity" or "delete another entity"
	What string `json:"what"`
	// that it would change or put, or of what it would delete
	Properties []ExampleProperty `json:"properties,omitempty"`
}

// An ExampleProperty is one of an example, with its values as texts of up to 200 characters.
type ExampleProperty struct {
	Name   string `json:"name"`
	Before string `json:"before"` // empty: it is not there
	After  string `json:"after"`
}

// PageExamples is how many examples a page of a rehearsal keeps.
const PageExamples = 2

// Exemplify has the record of a rehearsal's page keep examples.
func Exemplify(r *Range, all []Example) {
	if len(all) == 0 {
		return
	}
	text, err := json.Marshal(all)
	if err != nil {
		panic("record: texts do not encode: " + err.Error())
	}
	if len(text) <= undolog.MaxKeys {
		r.Examples, r.ExamplesOf = text, r.Job
	}
}

// ExamplesOf returns the examples that the records of a rehearsal's pages have.
func ExamplesOf(ranges []*Range) (all []Example, err error) {
	for _, r := range ranges {
		var some []Example
		if err := json.Unmarshal(r.Examples, &some); err != nil {
			return nil, fmt.Errorf("the examples of a rehearsal: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}
