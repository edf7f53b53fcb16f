package jobsapi_test

import (
	"strings"
	"testing"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/setting/settingtest"
	"github.com/scattermap/scattermap/jobsapi"
)

// TestErrorsNameSettings checks that errors name settings by their JSON names, and not by names of
// Go.
func TestErrorsNameSettings(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	o.ask(h, "POST", "/jobs", start, 200, nil)
	starts := map[string]string{ // wrong bodies of starts; each answer must contain the value
		`"id": "a b"`: `"id" "a b"`, `"id": "__x__"`: `"id" "__x__"`,
		`"page_size": 1001`: `"page_size"`, `"page_size": -1`: `"page_size"`, `"concurrency": 1001`: `"concurrency"`,
		`"page_time_ns": -1`:      `"page_time_ns"`,
		`"entity_timeout_ns": -1`: `"entity_timeout_ns"`, `"entity_timeout_ns": 3600000000000`: `"entity_timeout_ns"`,
		`"failure_limit": 0`: `"failure_limit" is 0`, `"failure_share": 0.0`: `"failure_share" is 0`,
		`"failure_limit": -2`: `"failure_limit"`, `"failure_share": 2`: `"failure_share"`,
		`"expected_workers": 5001`: `"expected_workers"`, `"retain_ns": 1`: `"retain_ns" has to be at least 192h0m0s`,
		`"retries": {"attempts": 101}`: `"retries.attempts"`, `"retries": {"first_ns": -1}`: `"retries.first_ns"`,
		`"retries": {"max_ns": -1}`: `"retries.max_ns"`,

		`"retries": {"first_ns": 9, "max_ns": 8}`: `at least "retries.first_ns"`,

		`"splitting": {"first": 2, "bisect": true}`:                                              `"splitting.bisect"`,
		`"splitting": {"first": -1}`:                                                             `"splitting.first"`,
		`"rate": {"entities": -2}`:                                                               `"rate.entities"`,
		`"rate": {"entities": 0.001}`:                                                            `"rate.entities"`,
		`"rate": {"writes": -2}`:                                                                 `"rate.writes"`,
		`"rate": {"calls": -2}`:                                                                  `"rate.calls"`,
		`"rate": {"writes": 0.001}`:                                                              `"rate.writes"`,
		`"rate": {"ramp": true}, "workers": 5000`:                                                `"rate.ramp"`,
		`"budget": {"operations": 1}`:                                                            `"budget"`,
		`"budget": {"dollars": -1}`:                                                              `"budget"`,
		`"query": {"kind": ""}`:                                                                  `"kind"`,
		`"query": {"kind": "__x__"}`:                                                             `"kind"`,
		`"query": {"kind": "a", "kinds": ["b"]}`:                                                 `"kinds"`,
		`"query": {"kind": "Nothing"}`:                                                           `"allow_empty"`,
		`"query": {"kind": "ScattermapJob"}`:                                                     `"kind"`,
		`"query": {"kind": "a", "namespace": "__x__"}`:                                           `"namespace"`,
		`"query": {"kind": "a", "namespace": "a b"}`:                                             `"namespace"`,
		`"query": {"kind": "a", "shard_by": "__x__"}`:                                            `"shard_by"`,
		`"query": {"kind": "a", "namespaces": ["b"], "all_namespaces": true}`:                    `"all_namespaces"`,
		`"query": {"kind": "a", "read_time": "2026-01-01T00:00:00Z"}`:                            `"read_time"`,
		`"query": {"kind": "a", "filters": [{"property": "p", "op": "!=", "value": 1}]}`:         `"filters"`,
		`"query": {"kind": "a", "filters": [{"property": "__key__", "op": "<", "value": 1}]}`:    `"start" and "end"`,
		`"query": {"kind": "Account", "filters": [{"property": "p", "op": "<", "value": 1}]}`:    `"filters"`,
		`"query": {"kind": "Account", "filters": [{"property":"Balance","op":"<","value":"x"}]}`: `"any_type"`,

		`"query": {"kind": "a", "shard_by": "p", "filters": [{"property":"p","op":"=","value":1}]}`: `of "shard_by"`,

		`"query": {"kind": "Account"}, "queue": "nowhere"`: "nowhere",
		`"query": {"kind": "Account"}`:                     `("allow_overlap")`, // another job over this kind runs
		`"mapper": "nobody"`:                               "nobody",
	}
	check := func(method, path, body, want string) {
		t.Helper()
		var answer struct {
			Error string   `json:"error"`
			Parts []string `json:"error_parts"`
		}
		code := 400
		if strings.Contains(want, "overlap") || strings.Contains(want, "other queue") {
			code = 409
		}
		o.ask(h, method, path, body, code, &answer)
		if found := settingtest.GoNames(answer.Error); len(found) > 0 || !strings.Contains(answer.Error, want) {
			t.Errorf("%s %s %s: %s has the Go names %q, or not %s", method, path, body, answer.Error, found, want)
		}
		if len(answer.Parts) > 0 && strings.Join(answer.Parts, "") != strings.Join(unquoted(answer.Error, answer.Parts),
			"") {
			t.Errorf("%s %s: %q, in parts %q", method, path, answer.Error, answer.Parts)
		}
	}
	for wrong, want := range starts {
		for _, path := range []string{"/jobs", "/jobs/plan"} {
			body := `{"params": {"Amount": 1}, ` + wrong
			for name, value := range map[string]string{`"mapper"`: `"add-credit"`, `"id"`: `"x"`,
				`"query"`: `{"kind": "Account"}`} {
				if !strings.Contains(wrong, name+":") {
					body += ", " + name + ": " + value
				}
			}
			if path == "/jobs/plan" && (strings.Contains(want, "overlap") || want == `"id"`) {
				continue // a plan does not check whether another job runs
			}
			check("POST", path, body+"}", want)
		}
	}
	for body, want := range map[string]string{
		`"per_entity_ns": -1`: `"per_entity_ns"`, `"writes": -1`: `"writes"`, `"calls": -1`: `"calls"`,
		`"splitting": {"first": 1, "fan_out": 2}`: `"splitting"`,
	} {
		check("POST", "/jobs/plan", `{"mapper": "add-credit", "query": {"kind": "Account"}, `+body+"}", want)
	}
	for _, c := range [][3]string{
		{"rate", `{"entities": -2}`, `"entities"`}, {"rate", `{"writes": 0.001}`, `"writes"`},
		{"rate", `{"calls": 0.001}`, `"calls"`},
		{"rate", `{}`, `{"entities": -1}`}, {"rate", `{"entities": 100, "for_ns": -1}`, "its time"},
		{"rate", `{"entities": 100, "for_ns": 0}`, "its time is 0s"},
		{"budget", `{}`, `{"dollars": -1}`},
		{"budget", `{"dollars": -1, "operations": -7}`, "has to be at least $"},
		{"budget", `{"dollars": 0.0001}`, "has to be at least $"},
		{"clean-up", `{"expire_ns": -1}`, `"expire_ns"`}, {"retry?cause=x", "", "no failure has the cause"},
	} {
		check("POST", "/jobs/spring/"+c[0], c[1], c[2])
	}
}

// unquoted returns parts if text is their concatenation with every second part in quotes. Otherwise
// it returns a slice that names the first part that text lacks.
func unquoted(text string, parts []string) []string {
	for i, p := range parts {
		if i%2 == 1 && p != "-1" {
			p = `"` + p + `"`
		}
		rest, ok := strings.CutPrefix(text, p)
		if !ok {
			return []string{"has not", p}
		}
		text = rest
	}
	return parts
}
