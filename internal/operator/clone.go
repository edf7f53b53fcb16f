package operator

import (
	"encoding/json"
	"strings"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// A Start has the arguments that start a job.
type Start struct {
	Mapper string          `json:"mapper"`
	Query  mapper.Query    `json:"query"`
	Params json.RawMessage `json:"params"`
	mapper.StartOptions
}

// Clone returns the arguments that start a job again: its mapper, query, parameters and current
// settings, its queue, and whether it is a rehearsal. The ID is empty. An undo can't be cloned, and
// ok is then false.
func Clone(job *mapper.Status) (s Start, ok bool) {
	if Undoes(job) {
		return s, false
	}
	s = Start{Query: job.Query, Params: job.Params, StartOptions: job.Settings}
	s.Mapper, s.DryRun = strings.CutPrefix(job.Mapper, "rehearsal:")
	s.ID, s.Queue = "", job.Queue
	if s.Mapper != prebuilt.EraseName {
		return s, true
	}
	query, err := json.Marshal(s.Query)
	if err != nil {
		return s, false
	}
	query, s.Params = Given(s.Mapper, query, s.Params)
	s.Query = mapper.Query{}
	return s, json.Unmarshal(query, &s.Query) == nil
}

// Given returns a job's query and parameters, in JSON, as the caller gave them to its start. The
// start of an erasure adds all kinds of a namespace or a tenant, and that only keys are read. Given
// removes this. It keeps all members of the JSON that it does not know.
func Given(mapper string, query, params json.RawMessage) (json.RawMessage, json.RawMessage) {
	var p prebuilt.EraseParams
	if mapper != prebuilt.EraseName || json.Unmarshal(params, &p) != nil {
		return query, params
	}
	query = without(query, "keys_only")
	if p.Property == "" || p.AllKinds {
		query = without(query, "kind", "kinds")
	}
	return query, without(params, "all_kinds")
}

// without returns a JSON object without some of its members.
func without(object json.RawMessage, names ...string) json.RawMessage {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return object
	}
	for _, name := range names {
		delete(members, name)
	}
	if rest, err := json.Marshal(members); err == nil {
		return rest
	}
	return object
}
