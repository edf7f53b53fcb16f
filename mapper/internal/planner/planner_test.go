package planner

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/source"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestOwnSamples cuts a root whose long samples are all in its own piece, as nothing is elsewhere:
// its record stays as small as those of its children.
func TestOwnSamples(t *testing.T) {
	var samples []*keyspace.Position
	for i := range 1600 {
		samples = append(samples,
			keyspace.At(datastore.NameKey("K", string(rune('A'+i))+strings.Repeat("x", 1200), nil)))
	}
	r := &record.Range{Job: "j", ID: record.RangeID("j", 0)}
	pieces := []split.Piece{{Samples: samples, End: samples[len(samples)-1]}, {Start: samples[len(samples)-1]}}
	if n := len(new(Planner).Cut(r, pieces, 500)); n != 1 {
		t.Fatalf("%d children", n)
	}
	if size := r.Size(); len(r.Samples) < 20 || size > split.MaxSampleBytes+4<<10 {
		t.Errorf("%d samples in a record of %d bytes", len(r.Samples), size)
	}
}

// TestFew reads a page of a range: where the rest is for others, its stream reads no more.
func TestFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		em := emulator.ForTest(t, nil)
		client, err := em.DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		for range 2 {
			if _, err := client.PutMulti(t.Context(), slices.Repeat([]*datastore.Key{datastore.IncompleteKey("K", nil)},
				500), make([]struct{ N int }, 500)); err != nil {
				t.Fatal(err)
			}
		}
		var paces pace.Book[record.Ref]
		paces.Expect(record.Ref{ID: "job"}, 100)
		for workers, want := range map[int64]int64{1: query.Batch, 4: 51} {
			p := &Planner{Pacer: Pacer{Paces: &paces}, Source: source.New(client, nil), Mode: function.Visit,
				Query: query.Query{Kind: "K"}}
			p.job, p.record = &record.Job{ID: "job", PageSize: 50}, &record.Range{PageSize: 50, Workers: workers}
			s := p.stream(t.Context())
			before := em.Usage()
			if found, err := s.Peek(51); err != nil || len(found) != 51 {
				t.Fatalf("%d, %v", len(found), err)
			}
			if reads := em.Usage().Sub(before).Reads; reads < want || reads > want+1 { // a query costs one
				t.Errorf("%d reads of a range for %d workers, want %d", reads, workers, want)
			}
			if found, err := s.Peek(2000); err != nil || len(found) != 1000 {
				t.Errorf("%d of 1000 found, %v", len(found), err)
			}
			s.Close()
		}
	})
}
