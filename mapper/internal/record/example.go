package record

import (
	"encoding/json"
	"fmt"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// An Example is a change that a rehearsal (a dry run of a job) would make to one entity.
type Example struct {
	Key *datastore.Key `json:"key"`
	// What is "change", "delete", "put another entity" or "delete another entity".
	What string `json:"what"`
	// Properties has the properties that would be changed, put or deleted.
	Properties []ExampleProperty `json:"properties,omitempty"`
}

// An ExampleProperty is a property before and after the change, both as texts of up to 200
// characters.
type ExampleProperty struct {
	Name   string `json:"name"`
	Before string `json:"before"` // empty: the property does not exist
	After  string `json:"after"`
}

// PageExamples is the number of examples that a rehearsal (a dry run of a job) stores of each page.
const PageExamples = 2

// Exemplify stores in the record of a range which changes its page would make, as examples. It is
// for rehearsals (dry runs). If the examples do not fit, it stores none.
func (r *Range) Exemplify(all []Example) {
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

// ExamplesOf returns the examples that are stored in the records of a rehearsal (a dry run).
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
