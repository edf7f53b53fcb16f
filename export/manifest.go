package export

import (
	"context"
	"encoding/json"
	"fmt"

	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/mapper"
)

// The names of what is in a folder besides files.
const (
	ManifestName = "manifest.json"
	SuccessName  = "_SUCCESS" // there once all else is, and nothing but that
	StartedName  = "_STARTED" // there until then: the folder is an export's
)

// A Manifest says what an export has written.
type Manifest struct {
	Export      string         `json:"export"` // its ID
	Run         string         `json:"run"`    // what tells it from others, also of the same ID
	Format      Format         `json:"format"`
	Compression Compression    `json:"compression,omitempty"`
	Query       mapper.Query   `json:"query"` // with its ReadTime, if it has one
	Records     int64          `json:"records"`
	Bytes       int64          `json:"bytes"`
	Failures    int64          `json:"failures"` // entities that the function has failed on, which are in no file
	Files       []ManifestFile `json:"files"`

	// Coverage is the proof that the export's job has covered its query: that of mapper.Job.Verify. It is left out of exports of
	// more than 100,000 parts, whose job has compared the same sums at its end.
	Coverage *mapper.Proof `json:"coverage,omitempty"`
}

// A ManifestFile is a file of an export.
type ManifestFile struct {
	Name    string `json:"name"` // below the folder
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"` // as it is stored
	SHA256  string `json:"sha256"`
}

func (m *Manifest) write(ctx context.Context, bucket *blob.Bucket, folder string) error {
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return mapper.Permanent(err)
	}
	if err := bucket.WriteAll(ctx, folder+"/"+ManifestName, append(text, '\n'), &blob.WriterOptions{ContentType: "application/json"}); err != nil {
		return fmt.Errorf("write the manifest: %w", err)
	}
	return nil
}

// ReadManifest reads the manifest in a folder of a bucket.
func ReadManifest(ctx context.Context, bucket *blob.Bucket, folder string) (*Manifest, error) {
	text, err := bucket.ReadAll(ctx, folder+"/"+ManifestName)
	if err != nil {
		return nil, fmt.Errorf("export: read the manifest: %w", err)
	}
	m := new(Manifest)
	if err := json.Unmarshal(text, m); err != nil {
		return nil, fmt.Errorf("export: the manifest of %q: %w", folder, err)
	}
	return m, nil
}
