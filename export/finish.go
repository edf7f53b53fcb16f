package export

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"
	"golang.org/x/sync/errgroup"

	"github.com/scattermap/scattermap/mapper"
)

// deleteParts deletes a file's share of the run's parts, including parts that no commit has
// recorded.
func (x *Export[P]) deleteParts(ctx context.Context, e *mapper.Entity[plannedFile], s stage) error {
	client := mapper.EngineFromContext(ctx).Client()
	var names []string
	err := eachPart(ctx, client, s.Run, stretch{From: e.Value.From, To: e.Value.To}, func(name string, _ part) error {
		names = append(names, name)
		return nil
	})
	if err != nil {
		return err
	}
	for some := range slices.Chunk(names, 500) {
		if err := x.deleteNamed(ctx, client, s, some); err != nil {
			return fmt.Errorf("delete the parts: %w", err)
		}
	}
	return x.sweepParts(ctx, e.Value.Index, s)
}

// deleteNamed deletes parts, and then their records.
func (x *Export[P]) deleteNamed(ctx context.Context, client *datastore.Client, s stage, names []string) error {
	group, within := errgroup.WithContext(ctx)
	group.SetLimit(deletesAtOnce)
	keys := make([]*datastore.Key, len(names))
	for i, name := range names { // listings may not show them yet
		keys[i] = datastore.NameKey(partKind, entityName(s.Run, name), nil)
		group.Go(func() error { return remove(within, x.bucket, s.place().part(name)) })
	}
	if err := group.Wait(); err != nil {
		return err
	}
	return client.DeleteMulti(ctx, keys)
}

// sweepParts deletes parts that no commit has recorded, in a file's share of the folders of parts.
// In a small run it does nothing, because the finalizer does that with one listing.
func (x *Export[P]) sweepParts(ctx context.Context, file int64, s stage) error {
	if s.Parts <= listed {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(listsAtOnce)
	for i := range int64(256) {
		if i*int64(min(s.Files, 256))/256 == file {
			folder := s.place().parts() + strconv.FormatInt(256+i, 16)[1:] + "/"
			group.Go(func() error { return deleteAll(ctx, x.bucket, folder, keepNone) })
		}
	}
	return group.Wait()
}

// Limits of parallel calls: how many blobs a task deletes at once, and how many listings it reads
// at once. A listing has up to listed names.
const (
	deletesAtOnce = 64
	listsAtOnce   = 16
	listed        = 1000
)

func keepNone(string) bool { return false }

// deleteAll deletes all blobs whose names have a prefix. It spares those for which keep returns
// true; keep gets the name without the prefix.
func deleteAll(ctx context.Context, bucket *blob.Bucket, prefix string, keep func(name string) bool) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(deletesAtOnce)
	for it := bucket.List(&blob.ListOptions{Prefix: prefix}); ; {
		found, err := it.Next(ctx)
		if errors.Is(err, io.EOF) {
			return group.Wait()
		}
		if err != nil {
			return errors.Join(group.Wait(), fmt.Errorf("list %s: %w", prefix, err))
		}
		if !keep(strings.TrimPrefix(found.Key, prefix)) {
			group.Go(func() error { return remove(ctx, bucket, found.Key) })
		}
	}
}

// succeed is the finalizer of the third stage: it ends the export.
func (x *Export[P]) succeed(ctx context.Context, d *mapper.Completion, s stage) error {
	if d.Status.Failures > 0 {
		return nil
	}
	decided, err := s.place().decided(ctx, x.bucket)
	if err != nil {
		return err
	}
	if decided == nil { // otherwise an earlier attempt has decided
		if decided, err = x.decide(ctx, s); err != nil {
			return err
		}
	}
	if decided.Discarded {
		return s.place().errDiscarded()
	}
	if s.Layout == 0 {
		if err := x.tidyDirectly(ctx, s); err != nil {
			return err
		}
	}
	if err := x.announce(ctx, s, decided); err != nil {
		return err
	}
	for some := range slices.Chunk(fileKeys(s), 500) {
		if err := mapper.EngineFromContext(ctx).Client().DeleteMulti(ctx, some); err != nil {
			return fmt.Errorf("delete the records of files: %w", err)
		}
	}
	return nil
}

// decide deletes all blobs that are no files of the export. Then it writes the manifest, which
// decides that the export has succeeded, unless the export was discarded before.
func (x *Export[P]) decide(ctx context.Context, s stage) (*Manifest, error) {
	if s.Layout == 0 {
		return nil, mapper.Permanent(fmt.Errorf("the folder %q has no manifest of run %s: has somebody deleted it?",
			s.Folder, s.Run))
	}
	m, err := x.manifest(ctx, s)
	if err != nil {
		return nil, err
	}
	// The run owns its folder. Other blobs in it are late parts, and fragments that killed
	// processes have left.
	keep := map[string]bool{ManifestName: true, SuccessName: true}
	for _, f := range m.Files {
		keep[strings.TrimPrefix(f.Name, s.place().name(""))] = true
	}
	if err := deleteAll(ctx, x.bucket, s.place().path(""), func(name string) bool { return keep[name] }); err != nil {
		return nil, err
	}
	return s.place().decide(ctx, x.bucket, m)
}

// announce writes the copies of the manifest, and other blobs that tell readers of the success. The
// success is already decided, so this may happen late.
func (x *Export[P]) announce(ctx context.Context, s stage, m *Manifest) error {
	if err := x.bucket.WriteAll(ctx, s.place().path(SuccessName), nil, nil); err != nil {
		return fmt.Errorf("write the mark of success: %w", err)
	}
	return s.place().copyManifest(ctx, x.bucket, m)
}

// tidyDirectly deletes blobs that are no files, for an export of an older build, which has its
// files directly in the export's folder.
func (x *Export[P]) tidyDirectly(ctx context.Context, s stage) error {
	if err := deleteAll(ctx, x.bucket, s.place().parts(), keepNone); err != nil {
		return err
	}
	return dropClaim(ctx, x.bucket, s.place())
}
