package mapper_test

import (
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
)

func TestMain(m *testing.M) { googletest.Main(m) }

// onEach runs a test on the embedded Datastore and on Google's emulators.
func onEach(t *testing.T, test func(t *testing.T, client *datastore.Client)) {
	t.Run("embedded", func(t *testing.T) {
		client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { client.Close() })
		test(t, client)
	})
	t.Run("google", func(t *testing.T) { test(t, googletest.Client(t, emulator.Classic)) })
	t.Run("firestore", func(t *testing.T) { test(t, googletest.Client(t, emulator.Firestore)) })
}
