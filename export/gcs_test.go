package export_test

import (
	"testing"

	"github.com/fsouza/fake-gcs-server/fakestorage"
	"gocloud.dev/blob/gcsblob"
	"gocloud.dev/gcp"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// TestGoogleCloudStorage exports to a server in this process that emulates Google Cloud Storage,
// with Google's real client.
func TestGoogleCloudStorage(t *testing.T) {
	server, err := fakestorage.NewServerWithOptions(fakestorage.Options{NoListener: true})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	server.CreateBucketWithOpts(fakestorage.CreateBucketOpts{Name: "my-exports"})
	bucket, err := gcsblob.OpenBucket(t.Context(), &gcp.HTTPClient{Client: *server.HTTPClient()}, "my-exports", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	x := newExport(bucket, &export.Options{Format: export.Avro, Compression: export.Gzip, Files: 2})
	engine, stop := newEngine(t.Context(), x.Mappers())
	defer stop()
	putOrders(t, engine.Client())
	run, err := x.Start(t.Context(), engine, mapper.Query{Kind: "Order"}, mapper.NoParams{}, &export.StartOptions{
		StartOptions: mapper.StartOptions{PageSize: 200}, Folder: folder})
	if err != nil {
		t.Fatal(err)
	}
	m, err := run.Wait(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	checkRecords(t, bucket, m)
	checkTidy(t, engine.Client(), bucket, m)
	if len(m.Files) != 2 {
		t.Errorf("%d files, want 2", len(m.Files))
	}
}
