package mapper

import (
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestOwnSamples cuts a root whose long samples are all in its own piece, as nothing is elsewhere:
// its record stays as small as those of its children.
func TestOwnSamples(t *testing.T) {
	var samples []*keyspace.Position
	for i := range 1600 {
		samples = append(samples, keyspace.At(datastore.NameKey("K", string(rune('A'+i))+strings.Repeat("x", 1200), nil)))
	}
	r := &record.Range{Job: "j", ID: record.RangeID("j", 0)}
	pieces := []split.Piece{{Samples: samples, End: samples[len(samples)-1]}, {Start: samples[len(samples)-1]}}
	if n := len(new(work).cut(r, pieces)); n != 1 {
		t.Fatalf("%d children", n)
	}
	if size := sizeOf(r); len(r.Samples) < 20 || size > split.MaxSampleBytes+4<<10 {
		t.Errorf("%d samples in a record of %d bytes", len(r.Samples), size)
	}
}
