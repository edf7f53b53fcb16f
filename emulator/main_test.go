package emulator_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
)

// Google's emulators are started once, when the first test asks for them.
var google = map[emulator.Product]func() (*emulator.Google, error){
	emulator.Classic:   startOnce(emulator.Classic),
	emulator.Firestore: startOnce(emulator.Firestore),
}

var started struct {
	sync.Mutex
	all []*emulator.Google
}

func startOnce(p emulator.Product) func() (*emulator.Google, error) {
	return sync.OnceValues(func() (*emulator.Google, error) {
		g, err := emulator.StartGoogle(context.Background(), p)
		if err == nil {
			started.Lock()
			started.all = append(started.all, g)
			started.Unlock()
		}
		return g, err
	})
}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, g := range started.all {
		g.Close()
	}
	os.Exit(code)
}

var projects atomic.Int64

// project returns a name that no other test uses.
func project() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), projects.Add(1)) }

// googleClient returns a client of an empty database in one of Google's
// emulators, or skips the test.
func googleClient(t *testing.T, p emulator.Product) *datastore.Client {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	g, err := google[p]()
	if errors.Is(err, emulator.ErrNotInstalled) {
		t.Skipf("left out: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	client, err := g.Datastore(t.Context(), project())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// embedded returns a client of an empty embedded database.
func embedded(t *testing.T, o *emulator.Options) *datastore.Client {
	t.Helper()
	client, err := emulator.ForTest(t, o).Datastore(t.Context(), project())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// onEach runs a test on the embedded Datastore and on Google's emulators.
func onEach(t *testing.T, test func(t *testing.T, client *datastore.Client)) {
	t.Run("embedded", func(t *testing.T) { test(t, embedded(t, nil)) })
	t.Run("google", func(t *testing.T) { test(t, googleClient(t, emulator.Classic)) })
	t.Run("firestore", func(t *testing.T) { test(t, googleClient(t, emulator.Firestore)) })
}

// on reports whether a subtest of onEach runs on one of them.
func on(t *testing.T, name string) bool { return strings.HasSuffix(t.Name(), "/"+name) }
