package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper/split"
)

// TestSplits splits a kind by keys and by a property.
func TestSplits(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	client, err := datastore.NewClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	var keys []*datastore.Key
	var values []struct{ N int }
	for i := range 400 {
		keys = append(keys, datastore.NameKey("Account", fmt.Sprintf("user-%03d", i), nil))
		values = append(values, struct{ N int }{i / 2})
	}
	if _, err := client.PutMulti(t.Context(), keys, values); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"-n 4": "/Account,\"user-100\"\n/Account,\"user-200\"\n/Account,\"user-300\"\n",
		"-n 4 --check": "         100  the beginning\n         100  /Account,\"user-100\"\n         100 " +
			" /Account,\"user-200\"\n         100  /Account,\"user-300\"\nparts: 4, entities: 400; the largest has " +
			"1.00 times the mean\n",
		"-n 1": "",
		"-n 2 --check --shard-by N": "         200  the beginning\n         200  100\nparts: 2, entities: 400; the " +
			"largest has 1.00 times the mean\n",
	} {
		var out strings.Builder
		if err := run(t.Context(), append(strings.Fields("splits --project test --kind Account"),
			strings.Fields(args)...), nil, &out, io.Discard); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", args, err, out.String())
		}
	}
	var out strings.Builder
	if err := run(t.Context(), strings.Fields("splits --project test --kind Account -n 4 -o json"), nil, &out,
		io.Discard); err != nil {
		t.Fatal(err)
	}
	var printed struct{ Splits []split.Part }
	if err := json.Unmarshal([]byte(out.String()), &printed); err != nil || len(printed.Splits) != 4 ||
		!printed.Splits[1].Query.Start.Equal(keys[100]) {
		t.Errorf("%s, %v", out.String(), err)
	}
	for args, want := range map[string]string{
		"":                     "--kind",
		"--kind Account -n 0":  "in [1, 10000], it is 0",
		"--kind Account more":  "it takes no argument",
		"--kind Account -n ab": "-help lists the flags",
		"--kind __x__":         "reserved",
		"--kind Acount -n 4": `there is no entity of the kind "Acount" in the namespace "", in the database ` +
			`"(default)" of the project "test", at ` + e.DatastoreAddr(),
		"--kind Account -n 2 --check --namespace other": `in the namespace "other"`,
		"--kind Account --compare --shard-by N":         "leave --shard-by out",
		"--kind Account --compare --check":              "leave --check out",
		"--kind Acount --compare":                       `there is no entity of the kind "Acount"`,
		"--kind Account --compare -n 0":                 "in [1, 10000], it is 0",
		"--kind Account --compare --namespace other":    `in the namespace "other"`,
		"--kind Account -n 2 -o json --shard-by M":      `that has the property "M"`,
	} {
		if err := run(t.Context(), append(strings.Fields("splits --project test"), strings.Fields(args)...), nil,
			io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}

// TestCompare compares the algorithms that cut a kind. The kind has a few keys with numeric IDs and
// many with names.
func TestCompare(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", ScatterOneIn: 4})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	client, err := datastore.NewClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	keys := []*datastore.Key{datastore.IDKey("Word", 1, nil), datastore.IDKey("Word", 2, nil)}
	for i := range 398 {
		keys = append(keys, datastore.NameKey("Word", fmt.Sprintf("word-%03d", i), nil))
	}
	if _, err := client.PutMulti(t.Context(), keys, make([]struct{}, len(keys))); err != nil {
		t.Fatal(err)
	}
	compare := func(args string) string {
		t.Helper()
		var out strings.Builder
		if err := run(t.Context(), strings.Fields("splits --project test --kind Word --compare "+args), nil, &out,
			io.Discard); err != nil {
			t.Fatalf("%s: %v", args, err)
		}
		return out.String()
	}
	text := compare("-n 8")
	for _, want := range []string{
		"entities: 400, parts: 8, mean: 50.0\n",
		"\nlexicographic        0      8      6         398     7.96  ▁······█\n",
		"\nsplits               -      8      0          50     1.00  ▁▁▁▁▁▁▁▁\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is not in\n%s", want, text)
		}
	}
	one, most := compare("-n 1"), compare("-n 10000")
	if strings.Contains(one, "asked for") || !strings.Contains(most, "of the 9999 keys that were asked for have") {
		t.Errorf("-n 1:\n%s\n-n 10000:\n%s", one, most)
	}
	for _, n := range []string{"1", "8", "20", "21", "10000"} {
		for line := range strings.Lines(compare("-n " + n)) {
			if utf8.RuneCountInString(line) > 81 {
				t.Errorf("-n %s: a line is longer than a terminal is wide: %s", n, line)
			}
		}
	}
	wantWays(t, compare("-n 8 -o json"), text)
	if yaml := compare("-n 8 -o yaml"); !strings.Contains(yaml, "way: lexicographic") {
		t.Error(yaml)
	}
}

// wantWays checks the JSON output of "splits --compare", and that the text output has the same
// notes.
func wantWays(t *testing.T, encoded, text string) {
	t.Helper()
	var c split.Comparison
	if err := json.Unmarshal([]byte(encoded), &c); err != nil || c.Entities != 400 ||
		len(c.Ways) != 4 || c.Ways[0].Largest != 398 || c.Ways[3].Each[7] != 50 {
		t.Errorf("%+v, %v", c, err)
	}
	for i, way := range c.Ways {
		wantAsked, few := []int{0, 7, 255, -1}[i], way.Sampled < way.Asked
		said := fmt.Sprintf("\n%s: only %d of the 255 keys that were asked for have __scatter__\n", way.Way,
			way.Sampled)
		if way.Asked != wantAsked || few != (way.Way == "oversampled") {
			t.Errorf("%s: %d of %d keys, want %d", way.Way, way.Sampled, way.Asked, wantAsked)
		}
		if few != (way.Note != "") || few != strings.Contains(text, said) {
			t.Errorf("%s: the note %q, and in the text:\n%s", way.Way, way.Note, text)
		}
	}
}
