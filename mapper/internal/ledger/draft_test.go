package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// TestDraft adds up records, and stores and restores a draft several times in between. The result
// must be the same as without drafts.
func TestDraft(t *testing.T) {
	j, all := tree(t)
	// With a pending range, every sum is more than 0.
	all[1].State, all[1].Open, all[1].Estimate = record.Pending, j.ID, 7
	all[3].Namespace, all[3].Kind = "n", "K"
	all[2].Job = "another"
	rng := testflag.Rand(t)
	want := new(Ledger)
	for _, r := range all {
		if err := want.Add(r); err != nil {
			t.Fatal(err)
		}
	}
	for i := range MaxProblems { // more problems than a ledger lists
		want.Problem("no %d", i)
	}
	d := &Draft{Epoch: 1}
	for _, i := range rng.Perm(len(all)) {
		var part Ledger
		if err := part.Add(all[i]); err != nil {
			t.Fatal(err)
		}
		d.Ledger.Merge(&part)
		d = restored(t, d)
	}
	for i := range MaxProblems {
		d.Ledger.Problem("no %d", i)
	}
	d = restored(t, d)
	if len(want.Problems) != len(d.Ledger.Problems) || want.missed != d.Ledger.missed || want.missed == 0 {
		t.Errorf("%d problems and %d, want %d and %d", len(d.Ledger.Problems), d.Ledger.missed, len(want.Problems),
			want.missed)
	}
	want.Problems = d.Ledger.Problems // with drafts, the problems may come in another order
	if !reflect.DeepEqual(&d.Ledger, want) {
		t.Errorf("%+v, want %+v", d.Ledger, *want)
	}
	v := reflect.ValueOf(*want)
	for i := range v.NumField() {
		if v.Field(i).IsZero() {
			t.Errorf("nothing adds up to %s", v.Type().Field(i).Name)
		}
	}
	d.Ledger.Close(j)
	want.Close(j)
	got, err := json.Marshal(d.Ledger.Totals)
	if exact, _ := json.Marshal(want.Totals); err != nil || !bytes.Equal(got, exact) {
		t.Errorf("totals %s, %v, want %s", got, err, exact)
	}
}

// restored encodes a draft and decodes it again, as another process does.
func restored(t *testing.T, d *Draft) *Draft {
	t.Helper()
	d.Encode()
	again := &Draft{Epoch: d.Epoch, Link: d.Link, Stored: d.Stored}
	if err := again.Decode(); err != nil {
		t.Fatal(err)
	}
	return again
}

// TestLargestDraft fills a draft with the most data that it can have, and adds counters that may be
// too large. It checks that the draft fits in an entity, and that it has all counters or reports
// them as lost.
func TestLargestDraft(t *testing.T) {
	rng := testflag.Rand(t)
	// The keys are the numbers of random bytes in each name, which can't be compressed.
	for random, fits := range map[int]bool{0: true, 3: true, 10: true, 30: false} {
		t.Run(fmt.Sprintf("%d random bytes", random), func(t *testing.T) { largestDraft(t, rng, random, fits) })
	}
}

func largestDraft(t *testing.T, rng *rand.Rand, random int, fits bool) {
	d := &Draft{Epoch: math.MaxInt64, Link: math.MaxInt64}
	for range 16 {
		d.From = append(d.From, strings.Repeat("f", 33))
	}
	for part := range 4 {
		counters := make(map[string]int64)
		for i := range 10_000 {
			name := make([]byte, random)
			for j := range name {
				name[j] = byte(rng.Uint32())
			}
			counters[fmt.Sprintf("%05d%x", part*10_000+i, name)] = int64(i)
		}
		encoded, err := json.Marshal(counters)
		if err == nil {
			err = d.Ledger.Add(&record.Range{State: record.Done, Counters: encoded})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if d.Ledger.tally.TooMany() {
		t.Fatal("there are too many counters")
	}
	want, _ := d.Ledger.tally.Values()
	for i := range 30_000 {
		d.Ledger.addSpace(fmt.Sprintf("%05d%s", i, strings.Repeat("n", i%200)),
			record.SpaceTotals{Processed: math.MaxInt64 / 40_000})
	}
	for range 30 {
		d.Ledger.Problem("%s", strings.Repeat("p", 10_000))
	}
	d.Encode()
	properties, err := datastore.SaveStruct(d)
	if err != nil {
		t.Fatal(err)
	}
	const most = 1 << 20
	if size := keyspace.PropertiesSize(properties); size > most*9/10 {
		t.Errorf("the record takes %d bytes", size)
	}
	again := restored(t, d)
	if got, err := again.Ledger.tally.Values(); fits && (err != nil || !maps.Equal(got, want)) ||
		!fits && !errors.Is(err, tally.ErrTooMany) {
		t.Errorf("%d counters, %v; want that all fit: %t", len(got), err, fits)
	}
	kept := len(again.Ledger.Spaces)
	if again.Ledger.bound(); len(again.Ledger.Spaces) != kept {
		t.Errorf("the draft has %d spaces, and room for %d", kept, len(again.Ledger.Spaces))
	}
	if n := d.Ledger.leftOut.Count(); len(d.Ledger.Spaces)+n < 29_000 || len(d.Ledger.Spaces)+n > 31_000 {
		t.Errorf("%d spaces, and about %d left out, of 30,000", len(d.Ledger.Spaces), n)
	}
}

// TestSpacesOfParts adds up numbers by kind and namespace in parts. There are too many kinds, so
// each part drops some. The result must be the same as if all records were added up at once.
func TestSpacesOfParts(t *testing.T) {
	rng := testflag.Rand(t)
	var whole Sum
	parts := make([]Sum, 7)
	for range 40_000 {
		name, n := fmt.Sprintf("%05d/K", rng.IntN(12_000)), record.SpaceTotals{Processed: int64(rng.IntN(1e6)),
			Failures: int64(rng.IntN(2))}
		whole.addSpace(name, n)
		parts[rng.IntN(len(parts))].addSpace(name, n)
	}
	var sum Sum
	for _, i := range rng.Perm(len(parts)) {
		parts[i].bound()
		sum.merge(&parts[i])
		sum.bound()
	}
	whole.bound()
	if !reflect.DeepEqual(sum, whole) || len(whole.Spaces) == 0 || whole.SpacesLeftOut == 0 {
		t.Errorf("%d spaces and %d left out, want %d and %d", len(sum.Spaces), sum.SpacesLeftOut, len(whole.Spaces),
			whole.SpacesLeftOut)
	}
}

// TestStoredNamesOfDrafts checks the property names under which drafts are stored, see
// record.TestStoredNames.
func TestStoredNamesOfDrafts(t *testing.T) {
	saved, err := datastore.SaveStruct(&Draft{Epoch: 1, Link: 1, From: []string{"a"}, Stored: []byte("b"),
		Kept: time.Now()})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range saved {
		names = append(names, p.Name)
	}
	slices.Sort(names)
	if want := []string{"epoch", "from", "kept", "ledger", "link"}; !slices.Equal(names, want) {
		t.Errorf("%q, want %q", names, want)
	}
	if err := (&Draft{Stored: []byte("{")}).Decode(); err == nil {
		t.Error("a damaged draft can be read")
	}
}
