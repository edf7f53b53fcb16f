package export

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/gcerrors"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper"
)

// The names of what is in a folder besides files.
const (
	// ManifestName is the name of a manifest. The one in the folder of a run decides: its export
	// has succeeded, or was discarded. The one in the export's folder is a copy, of the first
	// export that succeeded there.
	ManifestName = "manifest.json"
	// SuccessName is in the folder of a run that has succeeded.
	SuccessName = "_SUCCESS"
	// StartedName was in the folder of an export until its end, when files were directly in it.
	StartedName = "_STARTED"
)

// A Manifest lists the files of an export.
type Manifest struct {
	Export      string         `json:"export"` // its ID
	Run         string         `json:"run"`    // what tells it from others, also of the same ID
	Format      Format         `json:"format"`
	Compression Compression    `json:"compression,omitempty"`
	Query       mapper.Query   `json:"query"` // with its ReadTime, if it has one
	Records     int64          `json:"records"`
	Bytes       int64          `json:"bytes"`
	Failures    int64          `json:"failures"` // entities that were counted as failed, and are in no file
	Files       []ManifestFile `json:"files"`

	// Ended is when the files were complete, by the clock of the process that found out. Older
	// builds leave it out.
	Ended time.Time `json:"ended,omitzero"`

	// Discarded says that this is only a mark: the export was discarded, and the files do not
	// exist. ReadManifest ignores it.
	Discarded bool `json:"discarded,omitempty"`

	// Coverage is the proof of mapper.Job.Verify that the export's job has covered its query. An
	// export of more than 100,000 parts leaves it out, because its job has compared the same sums
	// at its end.
	Coverage *mapper.Proof `json:"coverage,omitempty"`
}

// A ManifestFile describes one file of an export.
type ManifestFile struct {
	Name    string `json:"name"` // below the export's folder: it starts with the folder of the run
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"` // as it is stored
	SHA256  string `json:"sha256"`
}

// ReadManifest reads the manifest of a folder. If the folder has several exports, it returns the
// one that ended last, of those that have succeeded and still exist. It lists the folder, and reads
// a manifest for each run in it. The returned manifest stays true: no export changes or deletes
// files of an export that has succeeded.
func ReadManifest(ctx context.Context, bucket *blob.Bucket, folder string) (*Manifest, error) {
	last, err := lastManifest(ctx, bucket, folder)
	if err != nil {
		return nil, fmt.Errorf("export: read the manifest in %q: %w", folder, err)
	}
	return last, nil
}

func lastManifest(ctx context.Context, bucket *blob.Bucket, folder string) (*Manifest, error) {
	first, missing := manifestAt(ctx, bucket, folder+"/"+ManifestName)
	if missing != nil && gcerrors.Code(missing) != gcerrors.NotFound {
		return nil, missing
	}
	runs, err := runsIn(ctx, bucket, folder)
	if err != nil {
		return nil, err
	}
	if first != nil { // which a late listing may not show, or whose name is that of an older build's run
		runs[first.Run] = true
	}
	var (
		mu   sync.Mutex
		last *Manifest
	)
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(readsAtOnce)
	for run := range runs {
		group.Go(func() error {
			m, err := manifestAt(ctx, bucket, place{folder: folder, run: run}.outcome())
			mu.Lock()
			defer mu.Unlock()
			switch notThere := gcerrors.Code(err) == gcerrors.NotFound; {
			case notThere && first != nil && first.Run == run && first.Ended.IsZero():
				m = first // an older build has written it, and nothing else
			case notThere: // it goes on, or somebody has deleted it
				missing = err
				return nil
			case err != nil:
				return err
			}
			if !m.Discarded && m.Run == run && (last == nil || m.after(last)) {
				last = m
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil || last != nil {
		return last, err
	}
	if missing == nil {
		missing = errors.New("all exports there were discarded")
	}
	return nil, missing
}

// readsAtOnce is how many manifests ReadManifest reads at the same time.
const readsAtOnce = 16

// after reports whether an export ended after another one.
func (m *Manifest) after(other *Manifest) bool {
	return cmp.Or(m.Ended.Compare(other.Ended), cmp.Compare(m.Run, other.Run)) > 0
}

// runsIn lists the runs that have a folder of their own in that of an export.
func runsIn(ctx context.Context, bucket *blob.Bucket, folder string) (map[string]bool, error) {
	runs, prefix := make(map[string]bool), folder+"/"+runPrefix
	for it := bucket.List(&blob.ListOptions{Prefix: prefix, Delimiter: "/"}); ; {
		found, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return runs, nil
		}
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", prefix, err)
		}
		name := strings.TrimSuffix(strings.TrimPrefix(found.Key, folder+"/"), "/")
		if found.IsDir && runFolder.MatchString(name) {
			runs[strings.TrimPrefix(name, runPrefix)] = true
		}
	}
}

// manifestAt reads the manifest that a name has. The error says so if it has none.
func manifestAt(ctx context.Context, bucket *blob.Bucket, key string) (*Manifest, error) {
	text, err := bucket.ReadAll(ctx, key)
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

// readManifest is manifestAt, and returns nil if the name has nothing.
func readManifest(ctx context.Context, bucket *blob.Bucket, key string) (*Manifest, error) {
	m, err := manifestAt(ctx, bucket, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, nil
	}
	return m, err
}

// writeOnce writes a manifest under a name, if that has nothing yet, and reports whether it did.
func writeOnce(ctx context.Context, bucket *blob.Bucket, key string, m *Manifest) (bool, error) {
	text, err := json.MarshalIndent(m, "", "\t")
	if err != nil {
		return false, mapper.Permanent(err)
	}
	err = bucket.WriteAll(ctx, key, append(text, '\n'), &blob.WriterOptions{IfNotExist: true,
		ContentType: "application/json"})
	if err != nil && gcerrors.Code(err) != gcerrors.FailedPrecondition {
		return false, fmt.Errorf("write %s: %w", key, err)
	}
	return err == nil, nil
}

// decide decides, once, that a run has succeeded, by its manifest, or that it was discarded, by one
// that says so: the first of both takes the name. It returns what the name has then.
func (p place) decide(ctx context.Context, bucket *blob.Bucket, m *Manifest) (*Manifest, error) {
	if decided, err := p.decided(ctx, bucket); decided != nil || err != nil {
		return decided, err
	}
	if written, err := writeOnce(ctx, bucket, p.outcome(), m); written || err != nil {
		return m, err
	}
	decided, err := readManifest(ctx, bucket, p.outcome())
	if err == nil && decided == nil {
		err = fmt.Errorf("%s was there, and is not: has somebody deleted it?", p.outcome())
	}
	return decided, err
}

// decided returns what was decided of a run, and nil if nothing was. An older build has decided
// that a run has succeeded by the manifest in the export's folder.
func (p place) decided(ctx context.Context, bucket *blob.Bucket) (*Manifest, error) {
	m, err := readManifest(ctx, bucket, p.outcome())
	if m == nil && err == nil && p.direct {
		m, err = readManifest(ctx, bucket, p.folder+"/"+ManifestName)
		if m != nil && m.Run != p.run {
			m = nil
		}
	}
	return m, err
}

// copyManifest copies the manifest of a run that has succeeded to the export's folder, if no other
// one is there. It may come late, as the manifest is true.
func (p place) copyManifest(ctx context.Context, bucket *blob.Bucket, m *Manifest) error {
	_, err := writeOnce(ctx, bucket, p.folder+"/"+ManifestName, m)
	return err
}

// discarded returns the opposite of a run's manifest. It names a file that is not there, so that a
// reader which takes it for one fails.
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
	return mapper.Permanent(fmt.Errorf("run %s of the export in %q was discarded: start another export",
		p.run, p.folder))
}
