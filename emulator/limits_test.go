package emulator_test

import (
	"testing"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/status"
)

// TestTooManyAggregations checks the text of an error that clients compare with production's.
func TestTooManyAggregations(t *testing.T) {
	client := embedded(t, nil)
	q := datastore.NewQuery("K").NewAggregationQuery()
	for _, alias := range []string{"a", "b", "c", "d", "e", "f"} {
		q = q.WithCount(alias)
	}
	_, err := client.RunAggregationQuery(t.Context(), q)
	const want = "The maximum number of aggregations allowed in an aggregation query is 5. Received: 6"
	if got := status.Convert(err).Message(); got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
