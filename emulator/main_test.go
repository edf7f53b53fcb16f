package emulator_test

import (
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/nightly"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

func TestMain(m *testing.M) { googletest.Main(m) }

// embedded returns a client of an empty embedded Datastore.
func embedded(t *testing.T, o *emulator.Options) *datastore.Client {
	t.Helper()
	client, err := emulator.ForTest(t, o).DatastoreClient(t.Context(), googletest.Project())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// leaveFirestore leaves out Google's Firestore emulator in a usual run. Package conformance also
// has this emulator.
func leaveFirestore(t *testing.T, p google.Product) {
	t.Helper()
	if p == google.Firestore {
		nightly.Leave(t)
	}
}

// onEach runs a test on the embedded Datastore and on Google's emulators (but see leaveFirestore).
func onEach(t *testing.T, test func(t *testing.T, client *datastore.Client)) {
	t.Run("embedded", func(t *testing.T) { test(t, embedded(t, nil)) })
	t.Run("google", func(t *testing.T) { test(t, googletest.Client(t, google.Classic)) })
	t.Run("firestore", func(t *testing.T) {
		leaveFirestore(t, google.Firestore)
		test(t, googletest.Client(t, google.Firestore))
	})
}

// on reports whether the current subtest of onEach runs on the Datastore of this name.
func on(t *testing.T, name string) bool { return strings.HasSuffix(t.Name(), "/"+name) }
