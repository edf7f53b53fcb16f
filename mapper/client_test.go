package mapper_test

import (
	"errors"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
)

// TestNewRefusesPlainClients makes engines with clients of each kind: one that can't read and write
// entities as they are stored is refused, by an error that says what to do, and nothing is asked of
// its database for that.
func TestNewRefusesPlainClients(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	w := newWorld(t, setting{})
	for name, c := range map[string]struct {
		make func() (*datastore.Client, error)
		want string
	}{
		"NewClient": {func() (*datastore.Client, error) { return mapper.NewClient(t.Context(), "test") }, ""},
		"NewClientWithDatabase": {func() (*datastore.Client, error) {
			return mapper.NewClientWithDatabase(t.Context(), "test", "other")
		}, ""},
		"the option": {func() (*datastore.Client, error) {
			return datastore.NewClient(t.Context(), "test", mapper.ClientOption())
		}, ""},
		"twice": {func() (*datastore.Client, error) {
			return mapper.NewClient(t.Context(), "test", mapper.ClientOption())
		}, ""},
		"plain": {func() (*datastore.Client, error) { return datastore.NewClient(t.Context(), "test") },
			"mapper.NewClient"},
	} {
		client, err := c.make()
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		before := e.Usage()
		_, err = mapper.NewEngine(client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit}})
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, mapper.ErrInvalidArgument) ||
			!strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if used := e.Usage().Sub(before).Reads; used != 0 {
			t.Errorf("%s: %d reads", name, used)
		}
	}
}
