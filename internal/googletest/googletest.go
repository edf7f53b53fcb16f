// Package googletest gives tests access to Google's emulators. The first test in a process that
// needs an emulator starts it, and later tests share it.
package googletest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"

	"github.com/scattermap/scattermap/emulator/google"
)

var shared = map[google.Product]func() (*google.Emulator, error){
	google.Classic:   once(google.Classic),
	google.Firestore: once(google.Firestore),
}

var running struct {
	sync.Mutex
	all []*google.Emulator
}

func once(p google.Product) func() (*google.Emulator, error) {
	return sync.OnceValues(func() (*google.Emulator, error) {
		g, err := google.Start(context.Background(), p)
		if err == nil {
			running.Lock()
			running.all = append(running.all, g)
			running.Unlock()
		}
		return g, err
	})
}

// Main runs the tests of a package, and then ends the emulators that they have started. The
// package's TestMain calls it.
func Main(m *testing.M) {
	code := m.Run()
	for _, g := range running.all {
		g.Close()
	}
	os.Exit(code)
}

var projects atomic.Int64

// Project returns a new project ID. No other test uses it, so the project's database is empty.
func Project() string { return fmt.Sprintf("test-%d-%d", os.Getpid(), projects.Add(1)) }

// Client returns a client of an empty database in one of Google's emulators. It
// skips the test if the emulator is not installed, and under -short.
func Client(t testing.TB, p google.Product, opts ...option.ClientOption) *datastore.Client {
	t.Helper()
	client, err := start(t, p).Datastore(context.Background(), Project(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// Addr returns the address of one of Google's emulators, and starts it if necessary. It skips the
// test as [Client] does.
func Addr(t testing.TB, p google.Product) string {
	t.Helper()
	return start(t, p).Addr
}

func start(t testing.TB, p google.Product) *google.Emulator {
	t.Helper()
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	g, err := shared[p]()
	if errors.Is(err, google.ErrNotInstalled) {
		t.Skipf("left out: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}
