package operator_test

import (
	"testing"

	"github.com/scattermap/scattermap/internal/operator"
)

// TestInJSON has errors name settings as a request does, and all else as it is.
func TestInJSON(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"StartOptions.PageSize has to be in [1, 1000]":             `"page_size" has to be in [1, 1000]`,
		"bad: StartOptions.EntityTimeout and twice PageTime":       `bad: "entity_timeout_ns" and twice PageTime`,
		"StartOptions.Rate.EntitiesPerSecond has to be at least 0": `"rate.entities" has to be at least 0`,
		"StartOptions.RetryPolicy.MaxAttempts, StartOptions.AllowEmpty": `StartOptions.RetryPolicy.MaxAttempts, ` +
			`"allow_empty"`,
		"StartOptions.Retries.MaxAttempts":                      `"retries.attempts"`,
		"PlanOptions.TimePerEntity, CleanUpOptions.ExpireAfter": `"per_entity_ns", "expire_ns"`,
		"Query.Kind of StartOptions, Query.Nothing":             `"kind" of StartOptions, Query.Nothing`,
	} {
		if got := operator.InJSON(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
