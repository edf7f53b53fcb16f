package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
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
		"-n 4":                      "/Account,\"user-100\"\n/Account,\"user-200\"\n/Account,\"user-300\"\n",
		"-n 4 --check":              "         100  the beginning\n         100  /Account,\"user-100\"\n         100  /Account,\"user-200\"\n         100  /Account,\"user-300\"\nparts: 4, entities: 400; the largest has 1.00 times the mean\n",
		"-n 1":                      "",
		"-n 2 --check --shard-by N": "         200  the beginning\n         200  100\nparts: 2, entities: 400; the largest has 1.00 times the mean\n",
	} {
		var out strings.Builder
		if err := run(t.Context(), append(strings.Fields("splits --project test --kind Account"), strings.Fields(args)...), nil, &out, io.Discard); err != nil || out.String() != want {
			t.Errorf("%s: %v\n%s", args, err, out.String())
		}
	}
	var out strings.Builder
	if err := run(t.Context(), strings.Fields("splits --project test --kind Account -n 4 -o json"), nil, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	var printed struct{ Splits []mapper.Split }
	if err := json.Unmarshal([]byte(out.String()), &printed); err != nil || len(printed.Splits) != 4 || !printed.Splits[1].Query.Start.Equal(keys[100]) {
		t.Errorf("%s, %v", out.String(), err)
	}
	for args, want := range map[string]string{
		"":                     "--kind",
		"--kind Account -n 0":  "in [1, 10000], it is 0",
		"--kind Account more":  `unknown command "more"`,
		"--kind Account -n ab": "-help lists the flags",
		"--kind __x__":         "reserved",
		"--kind Acount -n 4":   `there is no entity of the kind "Acount" in the namespace "", in the database "(default)" of the project "test", at ` + e.DatastoreAddr(),
		"--kind Account -n 2 --check --namespace other": `in the namespace "other"`,
		"--kind Account -n 2 -o json --shard-by M":      `that has the property "M"`,
	} {
		if err := run(t.Context(), append(strings.Fields("splits --project test"), strings.Fields(args)...), nil, io.Discard, io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
