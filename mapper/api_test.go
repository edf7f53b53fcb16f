package mapper_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	_ "github.com/scattermap/scattermap/internal/testflag" // the flags of all packages' tests
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestStates compares the public states of jobs with the states in records.
func TestStates(t *testing.T) {
	t.Parallel()
	for state, want := range map[mapper.State]record.JobState{
		mapper.StateRunning: record.Running, mapper.StateSucceeded: record.Succeeded, mapper.StateFailed: record.Failed,
		mapper.StateSucceededWithFailures: record.SucceededWithFailures, mapper.StatePaused: record.Paused,
		mapper.StateAborted: record.Aborted,
	} {
		if string(state) != string(want) {
			t.Errorf("%q is stored as %q", state, want)
		}
	}
}

// TestFailureJSON checks the JSON of a Failure, which HTTP handlers return.
func TestFailureJSON(t *testing.T) {
	t.Parallel()
	key := datastore.NameKey("Account", "a", nil)
	encoded, err := json.Marshal(mapper.Failure{Key: key, Path: `/Account,"a"`, Error: "no", Attempts: 5,
		Time: time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)})
	want := `{"key":"` + key.Encode() +
		`","path":"/Account,\"a\"","error":"no","attempts":5,"time":"2020-01-01T00:00:00Z"}`
	if err != nil || string(encoded) != want {
		t.Errorf("%s, %v, want %s", encoded, err, want)
	}
}

// TestTickJSON checks the JSON of a TickResult, which HTTP handlers return.
func TestTickJSON(t *testing.T) {
	t.Parallel()
	tick := mapper.TickResult{Outcome: mapper.TickStarted, Job: new(mapper.Engine).Job("nightly-1")}
	encoded, err := json.Marshal(tick)
	if want := `{"outcome":"started","job":{"id":"nightly-1"}}`; err != nil || string(encoded) != want {
		t.Errorf("%s, %v, want %s", encoded, err, want)
	}
}

// TestFiltersOnce checks that a filter in JSON with a repeated field is refused.
func TestFiltersOnce(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"property": "a", "op": "=", "value": 5, "value": 6}`:               `"value" comes twice`,
		`{"property": "a", "op": "=", "value": 5, "Value": 6}`:               `"value" and "Value"`,
		`{"property": "a", "Property": "b", "op": "=", "value": 5}`:          `"property" and "Property"`,
		`{"property": "a", "op": "=", "value": {"int": "5", "INT": "6"}}`:    `"int" and "INT"`,
		`{"property": "a", "op": "in", "value": [{"int": "5", "int": "6"}]}`: `"value[0].int" comes twice`,
		`{"property": "a", "op": "=", "value": 5, "than": 6}`:                `"than"`,
	} {
		var f mapper.Filter
		if err := json.Unmarshal([]byte(text), &f); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	if err := json.Unmarshal([]byte(`{"property": "a", "op": "=", "value": null}`), new(mapper.Filter)); err != nil {
		t.Error(err)
	}
	if _, err := mapper.Matches([]mapper.Filter{mapper.Where("a", "=", (*datastore.Key)(nil))}, nil); err != nil {
		t.Errorf("a nil key: %v", err)
	}
}

// TestNoProblemUnnoticed checks that Proof.Err returns an error for each proof with Problems.
func TestNoProblemUnnoticed(t *testing.T) {
	t.Parallel()
	if err := (&mapper.Proof{Ranges: 3, Differences: []string{"other entities"}}).Err(); err != nil {
		t.Errorf("a proof without problems: %v", err)
	}
	err := (&mapper.Proof{Problems: []string{"a gap", "an overlap", "a loss"}}).Err()
	if err == nil || !strings.Contains(err.Error(), "a gap") || !strings.Contains(err.Error(), "2") {
		t.Errorf("a proof with problems: %v", err)
	}
}

// TestDocumentedNumbers compares the numbers in the documentation with the numbers in the code.
func TestDocumentedNumbers(t *testing.T) {
	t.Parallel()
	if mapper.DefaultVisitAttempts != record.VisitAttempts || mapper.MaxDeaths != record.MaxDeaths {
		t.Errorf("%d attempts and %d deaths are documented, and it is %d and %d", mapper.DefaultVisitAttempts,
			mapper.MaxDeaths,
			record.VisitAttempts, record.MaxDeaths)
	}
}
