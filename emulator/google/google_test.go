package google_test

import (
	"context"
	"errors"
	"net"
	"os"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/nightly"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

// TestGoogleEndsWithItsTest starts each of Google's emulators for a test, and checks that its
// process has ended afterwards. Both end in the same way, so one is enough for a usual run.
func TestGoogleEndsWithItsTest(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		addr := ""
		t.Run(string(p), func(t *testing.T) {
			if p == google.Firestore {
				nightly.Leave(t)
			}
			g := google.ForTest(t, p)
			client, err := g.Datastore(t.Context(), "test")
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			keys := []*datastore.Key{datastore.NameKey("K", "a", nil), datastore.NameKey("K", "b", nil)}
			if _, err := client.PutMulti(t.Context(), keys, make([]struct{}, len(keys))); err != nil {
				t.Fatal(err)
			}
			if _, err := client.GetAll(t.Context(), datastore.NewQuery("K").KeysOnly(), nil); err != nil {
				t.Fatal(err)
			}
			if u := g.Usage(); u.Writes != 2 || u.SmallOps != 2 || u.Reads < 1 || u.RPCs["Commit"] != 1 {
				t.Errorf("usage %+v", u)
			}
			addr = g.Addr
		})
		if addr == "" {
			continue // the subtest was skipped: the emulator is not installed
		}
		if conn, err := net.DialTimeout("tcp", addr, time.Second); err == nil {
			conn.Close()
			t.Errorf("%s still listens on %s", p, addr)
		}
	}
}

// TestGoogleNotInstalled checks the errors on a machine without the emulators, or without Java.
func TestGoogleNotInstalled(t *testing.T) {
	for _, p := range []google.Product{google.Classic, google.Firestore} {
		t.Run(string(p), func(t *testing.T) {
			t.Setenv("PATH", t.TempDir())
			t.Setenv("HOME", t.TempDir())
			t.Setenv("CLOUDSDK_ROOT_DIR", "")
			t.Setenv("JAVA_HOME", "")
			// Start also searches the usual folders. It may find the emulator there, but no Java.
			if _, err := google.Start(context.Background(), p); !errors.Is(err, google.ErrNotInstalled) {
				t.Errorf("error %v, want ErrNotInstalled", err)
			}
		})
	}
	if _, err := google.Start(context.Background(), "another"); err == nil ||
		errors.Is(err, google.ErrNotInstalled) {
		t.Errorf("a product that does not exist: %v", err)
	}
}

// TestGoogleThatDoesNotAnswer checks that a failed start leaves no process and no files, if the
// emulator does not answer.
func TestGoogleThatDoesNotAnswer(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp) // Start creates the emulator's folder in TMPDIR
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := google.Start(ctx, google.Classic)
	if errors.Is(err, google.ErrNotInstalled) {
		t.Skipf("left out: %v", err)
	}
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
	if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
		t.Errorf("files were not removed: %v, %v", left, err)
	}
}
