package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/mapper/split"
)

// TestScatter checks that a lexicographic cut gives half of the shards to the few entities with
// IDs. A cut at sampled keys must be more even, the more keys are sampled.
func TestScatter(t *testing.T) {
	c, err := parse([]string{"-names", "12000", "-json"}, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := run(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	var r split.Comparison
	if err := json.Unmarshal(out.Bytes(), &r); err != nil || r.Entities != 12_003 || len(r.Ways) != 4 {
		t.Fatalf("%s, %v", out.String(), err)
	}
	lexicographic, scatter, oversampled, ours := r.Ways[0], r.Ways[1], r.Ways[2], r.Ways[3]
	if got := fmt.Sprint(lexicographic.Each[:4]); got != "[3 0 0 0]" {
		t.Errorf("the first half of the shards has %s entities, want the 3 ids only", got)
	}
	if lexicographic.Ratio <= scatter.Ratio || scatter.Ratio <= 1.3*max(oversampled.Ratio, ours.Ratio) ||
		ours.Ratio > 1.3 {
		t.Errorf("the largest is %.2f, %.2f, %.2f and %.2f times the mean", lexicographic.Ratio, scatter.Ratio,
			oversampled.Ratio, ours.Ratio)
	}
}

// TestPrinted checks the output of the command for kinds of several sizes.
func TestPrinted(t *testing.T) {
	for _, args := range []string{"-ids 0 -names 0", "-ids 1 -names 0", "-ids 0 -names 1",
		"-ids 3 -names 5 -shards 100", "-names 300 -shards 1", "-names 700"} {
		c, err := parse(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := run(t.Context(), c, &out); err != nil ||
			!strings.Contains(out.String(), "oversampled: the largest has") {
			t.Errorf("%s: %v\n%s", args, err, out.String())
		}
		for line := range strings.Lines(out.String()) {
			if len([]rune(line)) > 80 {
				t.Errorf("%s: a long line: %s", args, line)
			}
		}
	}
}

// TestFewKeys checks the message for a kind in which too few entities have __scatter__.
func TestFewKeys(t *testing.T) {
	for args, want := range map[string]string{
		"-ids 0 -names 0":   "\n  no entity has __scatter__, so it is cut nowhere\n",
		"-names 700":        " of the 255 keys that were asked for have __scatter__\n",
		"-names 3000":       " of the 255 keys that were asked for have __scatter__\n",
		"-ids 9 -shards 1":  "",
		"-shards 2 -ids 20": "",
	} {
		c, err := parse(strings.Fields(args), io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var out strings.Builder
		if err := run(t.Context(), c, &out); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), want) || want == "" && strings.Contains(out.String(), "__scatter__") {
			t.Errorf("%s: want %q in\n%s", args, want, out.String())
		}
	}
}

// TestGoogle runs the command on Google's emulators if they are installed. One of them has no
// aggregation queries, and the other no __scatter__.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, product := range []google.Product{google.Classic, google.Firestore} {
		t.Run(fmt.Sprint(product), func(t *testing.T) {
			t.Parallel()
			server, err := google.Start(t.Context(), product)
			if errors.Is(err, google.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer server.Close()
			client, err := server.Datastore(t.Context(), "test")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			if r, err := compare(t.Context(), client, config{shards: 4}); err != nil || r.Entities != 0 {
				t.Errorf("an empty kind: %+v, %v", r, err)
			}
			r, err := compare(t.Context(), client, config{ids: 2, names: 400, shards: 4})
			if err != nil {
				t.Fatal(err)
			}
			if r.Entities != 402 || r.Ways[0].Each[0] != 2 || r.Ways[0].Each[1] != 0 || r.Ways[3].Ratio > 1.5 {
				t.Errorf("%+v", r)
			}
		})
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{"-ids -1": "-ids", "-names 1000001": "-names", "-shards 0": "-shards",
		"more": `"more"`} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
