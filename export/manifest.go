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

// Names of blobs beside the files.
const (
	// ManifestName is the name of a manifest. The manifest in a run's folder decides whether the
	// export has succeeded or was discarded. In [StartOptions].Folder, the first run that succeeds
	// puts a copy of its manifest. Later runs leave this copy unchanged.
	ManifestName = "manifest.json"
	// SuccessName is the name of an empty blob in the folder of a run that has succeeded.
	SuccessName = "_SUCCESS"
	// StartedName is the name of a blob that older builds kept in the export's folder until its
	// end.
	StartedName = "_STARTED"
)

// A Manifest lists the files of an export that has succeeded: see [ReadManifest].
type Manifest struct {
	Export      string         `json:"export"` // the ID of the export
	Run         string         `json:"run"`    // distinguishes this run from other exports with the same ID
	Format      Format         `json:"format"`
	Compression Compression    `json:"compression,omitempty"`
	Query       mapper.Query   `json:"query"` // the export's query, with its ReadTime if it has one
	Records     int64          `json:"records"`
	Bytes       int64          `json:"bytes"`
	Failures    int64          `json:"failures"` // number of entities that are in no file because they failed
	Files       []ManifestFile `json:"files"`

	// Ended is when the files were complete, by the clock of the process that noticed it. Manifests
	// of older builds lack it.
	Ended time.Time `json:"ended,omitzero"`

	// Discarded says that this is not a manifest but the mark of a discarded export. Its files do
	// not exist. [ReadManifest] ignores it.
	Discarded bool `json:"discarded,omitempty"`

	// Coverage is the proof ([mapper.Job.Verify]) that the first job covered its query. It is
	// missing if the export has more than 100,000 parts, or if somebody has cleaned up the first
	// job before the files were complete. Then the first job has passed only the check that every
	// job makes at its end.
	Coverage *mapper.Proof `json:"coverage,omitempty"`
}

// A ManifestFile describes one file of an export.
type ManifestFile struct {
	Name    string `json:"name"` // the file's path below the export's folder; it starts with the run's folder
	Records int64  `json:"records"`
	Bytes   int64  `json:"bytes"` // the size of the stored file, which may be compressed
	SHA256  string `json:"sha256"`
}

// ReadManifest returns the manifest of the last export in a folder: the one with the latest end,
// among those that have succeeded and still exist. It lists the folder, and reads one manifest for
// each run in it. The files in the returned manifest are final: no export changes or deletes them.
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
	// The listing may lack the run whose manifest was copied to the export's folder: the manifest
	// is new, or an older build has written it only there.
	if first != nil {
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
				m = first // an older build writes no other manifest
			case notThere: // the run has not ended, or somebody has deleted its manifest
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

// readsAtOnce is how many manifests ReadManifest reads in parallel.
const readsAtOnce = 16

// after reports whether the export of this manifest ended after the other one.
func (m *Manifest) after(other *Manifest) bool {
	return cmp.Or(m.Ended.Compare(other.Ended), cmp.Compare(m.Run, other.Run)) > 0
}

// runsIn returns the names of the runs in an export's folder.
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

// manifestAt reads a manifest. If there is none, the error says so.
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

// readManifest does the same as manifestAt, but returns nil if there is no manifest.
func readManifest(ctx context.Context, bucket *blob.Bucket, key string) (*Manifest, error) {
	m, err := manifestAt(ctx, bucket, key)
	if gcerrors.Code(err) == gcerrors.NotFound {
		return nil, nil
	}
	return m, err
}

// writeOnce writes a manifest unless a blob with its name exists. It reports whether it has written
// the manifest.
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

// decide decides whether a run has succeeded or was discarded. The argument m is the manifest, or
// the mark of a discarded run. Whichever is written first stays, and decide returns it.
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

// decided returns the manifest of a run that has succeeded, or the mark of a discarded run, or nil
// if neither exists yet. For a run of an older build, it also looks for the manifest in the
// export's folder.
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

// copyManifest copies the manifest of a run that has succeeded to the export's folder, unless the
// folder already has one. The copy may be written late, because a run's manifest never changes.
func (p place) copyManifest(ctx context.Context, bucket *blob.Bucket, m *Manifest) error {
	_, err := writeOnce(ctx, bucket, p.folder+"/"+ManifestName, m)
	return err
}

// discarded returns the mark of a discarded run. It lists a file that does not exist, so that a
// reader who mistakes it for a manifest fails.
func (p place) discarded(id string) *Manifest {
	return &Manifest{Export: id, Run: p.run, Discarded: true, Files: []ManifestFile{{Name: p.name("_DISCARDED")}}}
}

// wasDiscarded returns an error if a run was discarded. The run's tasks call it to stop early.
func (p place) wasDiscarded(ctx context.Context, bucket *blob.Bucket) error {
	m, err := readManifest(ctx, bucket, p.outcome())
	if m != nil && m.Discarded {
		err = p.errDiscarded()
	}
	return err
}

func (p place) errDiscarded() error {
	return mapper.Permanent(fmt.Errorf("run %s of the export in %q was discarded: start another export",
		p.run, p.folder))
}
