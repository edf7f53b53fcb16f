package emulator_test

import (
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// TestEnforcedIndexes asks for what an index serves, and for what none does: the
// error has the lines to add, and with them the query is served.
func TestEnforcedIndexes(t *testing.T) {
	const file = "indexes:\n- kind: Book\n  properties:\n  - name: Author\n  - name: Year\n"
	client := embedded(t, &emulator.Options{Indexes: []byte(file)})
	library(t, client)
	byAuthor := datastore.NewQuery("Book").FilterField("Author", "=", "Ann")
	if got := keysOf(t, client, byAuthor.Order("Year")); len(got) != 3 {
		t.Errorf("with its index: %v", got)
	}
	query := byAuthor.Order("-Year").KeysOnly()
	_, err := client.GetAll(t.Context(), query, nil)
	if status.Code(err) != codes.FailedPrecondition {
		t.Fatalf("without an index: %v, want FailedPrecondition", err)
	}
	_, lines, found := strings.Cut(status.Convert(err).Message(), "recommended index is:\n")
	if !found {
		t.Fatalf("the error has no index: %v", err)
	}
	sums := byAuthor.NewAggregationQuery().WithSum("Year", "s").WithAvg("Pages", "a")
	if _, err := client.RunAggregationQuery(t.Context(), sums); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("what is added up is in no index: %v, want FailedPrecondition", err)
	}
	client = embedded(t, &emulator.Options{Indexes: []byte(file + lines)})
	library(t, client)
	if keys, err := client.GetAll(t.Context(), query, nil); err != nil || len(keys) != 3 {
		t.Errorf("with the recommended index: %v, %v", keys, err)
	}
}
