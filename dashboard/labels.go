package dashboard

import (
	"cmp"
	"strings"

	"github.com/scattermap/scattermap/internal/operator"
)

// labels has the label of each input of a form, by the input's name.
var labels = map[string]string{
	"kind": "Kind", "namespace": "Namespace", "filters": "Filters", "share": "Share of a canary", "id": "ID",
	"rate": "Entities a second", "writes": "Writes a second", "calls": "Calls a second", "for": "Duration",
	"ramp":   "Ramp up",
	"budget": "Budget in dollars", "operations": "Operations", "page_size": "Page size", "workers": "Workers",
	"concurrency":   "Concurrency",
	"failure_limit": "Failure limit", "queue": "Queue", "per_entity": "Time per entity",
	"background":  "Background: give way to other clients of the database",
	"beside":      "Run beside other jobs of the mapper",
	"allow_empty": "Allow a kind without entities", "rehearsal": "Rehearsal",
	"all_namespaces": "All namespaces", "shard_by": "In the order of a property", "keys_only": "Read only keys",
	"read_time": "Read time", "attempts": "Attempts", "page_time": "Page time",
	"entity_timeout": "Time limit of an entity",
	"retain":         "Keep records",
	"move":           "Move to this service", "retry": "Retry failures", "failures": "Failures",
}

// inputs has the name of the form's input for each setting whose input is not called like the
// setting. The keys are the settings' names in JSON.
var inputs = map[string]string{
	"rate.entities": "rate", "entities": "rate", "rate.writes": "writes", "rate.calls": "calls",
	"rate.ramp": "ramp", "for_ns": "for",
	"budget.dollars": "budget", "budget.operations": "budget", "expected_workers": "workers",
	"per_entity_ns": "per_entity", "page_time_ns": "page_time", "entity_timeout_ns": "entity_timeout",
	"retries.attempts": "attempts", "retain_ns": "retain", "kinds": "kind", "namespaces": "namespace",
	"allow_overlap": "beside", "dry_run": "rehearsal", "start": "filters",
	"end": "filters", "ancestor": "filters",
}

// where lists prefixes of errors that name a package or an action. Pages remove them, because they
// already show which action has failed.
var where = []string{"mapper: ", "picture: ", "status: ", "history: ", "jobs: ", "causes: ", "pause: ", "resume: ",
	"abort: ", "retry: ", "undo: ", "start: ", "plan: ", "bad arguments: "}

// labelOf returns the label of a form's input, in quotes.
func labelOf(input string) string { return "\u201c" + labels[input] + "\u201d" }

// said returns the text of an error for a page. It calls settings by the labels of their inputs.
func (s *server) said(err error) string {
	text := operator.Say(err, func(name string) string {
		input := cmp.Or(inputs[name], name)
		if labels[input] != "" {
			return labelOf(input)
		}
		return operator.Elsewhere(name)
	})
	for _, where := range where {
		text = strings.TrimPrefix(text, where)
	}
	return s.redact(TextError, text)
}
