package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"

	"github.com/scattermap/scattermap/mapper"
)

// The names of what is in a folder besides files.
const (
	// ManifestName is in the export's folder, and the last that it writes: an export whose manifest is there has
	// succeeded. The folder of its run has a copy from shortly before.
	ManifestName = "manifest.json"
	// SuccessName is in the folder of a run, once all of its files are. Whether the export has succeeded, only the
	// manifest says.
	SuccessName = "_SUCCESS"
	// StartedName was in the folder of an export until its end, when files were directly in it.
	StartedName = "_STARTED"
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

	// Discarded says that this is no manifest: the export was discarded, and what it names is not there. ReadManifest
	// passes it over.
	Discarded bool `json:"discarded,omitempty"`

	// Coverage is the proof that the export's job has covered its query: that of mapper.Job.Verify. It is left out of exports of
	// more than 100,000 parts, whose job has compared the same sums at its end.
	Coverage *mapper.Proof `json:"coverage,omitempty"`
}

// A ManifestFile is a file of an export.
type ManifestFile struct {
	Name    string `json:"name"` // below the export's folder: it begins with the folder of the run
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"` // as it is stored
	SHA256  string `json:"sha256"`
}

// ReadManifest reads the manifest in a folder of a bucket: that of the export which succeeded last, if several have.
// What it returns stays true, as nothing that belongs to an export which has succeeded is changed or deleted any more.
func ReadManifest(ctx context.Context, bucket *blob.Bucket, folder string) (*Manifest, error) {
	var last, discarded *Manifest
	err := eachManifest(ctx, bucket, folder, func(m *Manifest) {
		if discarded = m; !m.Discarded {
			last = m
		}
	})
	switch {
	case err == nil && last == nil && discarded != nil:
		err = fmt.Errorf("export %q was discarded, and no other one has succeeded there", discarded.Export)
	case err == nil && last == nil:
		if _, err = bucket.ReadAll(ctx, folder+"/"+ManifestName); err == nil { // it has come just now
			return ReadManifest(ctx, bucket, folder)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("export: read the manifest in %q: %w", folder, err)
	}
	return last, nil
}

var slotName = regexp.MustCompile(`^manifest(-[0-9]+)?\.json$`)

// manifestName returns the name of a manifest in the export's folder, from 1 on.
func manifestName(i int) string {
	if i == 1 {
		return ManifestName
	}
	return fmt.Sprintf("manifest-%d.json", i)
}

// eachManifest calls f for what each of the manifests' names has, to the first that has nothing.
func eachManifest(ctx context.Context, bucket *blob.Bucket, folder string, f func(*Manifest)) error {
	for i := 1; ; i++ {
		m, err := readManifest(ctx, bucket, folder+"/"+manifestName(i))
		if err != nil || m == nil {
			return err
		}
		f(m)
	}
}

// readManifest reads what a name has, and returns nil if that is nothing.
func readManifest(ctx context.Context, bucket *blob.Bucket, key string) (*Manifest, error) {
	text, err := bucket.ReadAll(ctx, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, nil
	}
	m := new(Manifest)
	if err == nil {
		err = json.Unmarshal(text, m)
	}
	if err == nil && m.Run == "" {
		err = errors.New("it is no manifest of an export")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", key, err)
	}
	return m, nil
}

// decide writes a manifest under a name that nothing has yet, and returns what it has then: a name is decided once.
func decide(ctx context.Context, bucket *blob.Bucket, key string, m *Manifest) (*Manifest, error) {
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return nil, mapper.Permanent(err)
	}
	err = bucket.WriteAll(ctx, key, append(text, '\n'), &blob.WriterOptions{IfNotExist: true,
		ContentType: "application/json"})
	if err == nil {
		return m, nil
	}
	if gcerrors.Code(err) != gcerrors.FailedPrecondition {
		return nil, fmt.Errorf("write %s: %w", key, err)
	}
	decided, err := readManifest(ctx, bucket, key)
	if err == nil && decided == nil {
		err = fmt.Errorf("%s was there, and is not: has somebody deleted it?", key)
	}
	return decided, err
}

// settle decides, once, that a run has succeeded, by its manifest, or that it was discarded, by one that says so. It
// returns which of both it is. Of a run that succeeds, it calls before right before the folder says so.
//
// The run's outcome is decided first, under a name of its own. If that is the discard, the run comes no further.
// Otherwise its manifest may be on its way to the first name in the export's folder that is free, and that name
// decides: of a run, at most one of both is there. Whoever comes to a name that another run has goes on to the next
// one.
func (p place) settle(ctx context.Context, bucket *blob.Bucket, m *Manifest, before func() error) (*Manifest, error) {
	if settled, err := p.settled(ctx, bucket); settled != nil || err != nil {
		return settled, err
	}
	decided, err := decide(ctx, bucket, p.outcome(), m)
	if err != nil || decided.Discarded {
		return decided, err
	}
	if !m.Discarded {
		m = decided // what an attempt before this one has made
		if err := before(); err != nil {
			return nil, err
		}
	}
	for i := 1; ; i++ {
		key := p.folder + "/" + manifestName(i)
		decided, err := readManifest(ctx, bucket, key)
		if err == nil && decided == nil {
			decided, err = decide(ctx, bucket, key, m)
		}
		if err != nil || decided.Run == p.run {
			return decided, err
		}
	}
}

// settled returns what the export's folder says of a run, and nil if that is nothing.
func (p place) settled(ctx context.Context, bucket *blob.Bucket) (settled *Manifest, err error) {
	err = eachManifest(ctx, bucket, p.folder, func(m *Manifest) {
		if m.Run == p.run {
			settled = m
		}
	})
	return settled, err
}

// discarded returns the opposite of a run's manifest. It names a file that is not there, so that a reader which takes
// it for one fails.
func (p place) discarded(id string) *Manifest {
	return &Manifest{Export: id, Run: p.run, Discarded: true, Files: []ManifestFile{{Name: p.name("_DISCARDED")}}}
}

// wasDiscarded returns an error if a run was discarded, so that it does no more for nothing.
func (p place) wasDiscarded(ctx context.Context, bucket *blob.Bucket) error {
	m, err := readManifest(ctx, bucket, p.outcome())
	if err == nil && m != nil && m.Discarded {
		err = p.errDiscarded()
	}
	return err
}

func (p place) errDiscarded() error {
	return mapper.Permanent(fmt.Errorf("run %s of the export in %q was discarded (Run.Discard): start another export",
		p.run, p.folder))
}
