package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/mapper"
)

// A Run is one export.
type Run struct {
	ID     string
	Folder string

	engine *mapper.Engine
	bucket *blob.Bucket
	run    string // what tells it from others of the ID
	allow  bool   // failures
}

// Find returns the export of an ID that was started.
func (x *Export[P]) Find(ctx context.Context, e *mapper.Engine, id string) (*Run, error) {
	r := &Run{ID: id, engine: e, bucket: x.bucket, allow: x.opts.AllowFailures}
	if err := r.load(ctx, x.name); err != nil {
		return nil, fmt.Errorf("export: find %q of %q: %w", id, x.name, err)
	}
	return r, nil
}

// load reads what the first job knows of its export.
func (r *Run) load(ctx context.Context, name string) error {
	status, err := r.Jobs()[0].Status(ctx)
	if err != nil {
		return err
	}
	if status.Mapper != name {
		return fmt.Errorf("%w: it is a job of %q", mapper.ErrOtherArguments, status.Mapper)
	}
	var params startParams[json.RawMessage]
	if err := json.Unmarshal(status.Params, &params); err != nil {
		return fmt.Errorf("the job's parameters: %w", err)
	}
	r.run, r.Folder = params.Run, params.Folder
	return nil
}

// claim has the export's folder be its own, unless its first job is there already. Then it reads what that says.
func (r *Run) claim(ctx context.Context, name string) (claims bool, err error) {
	folder := r.Folder
	if err := r.load(ctx, name); !errors.Is(err, mapper.ErrNoSuchJob) {
		return false, err
	}
	jobs := r.Jobs()
	for _, job := range jobs[1:] {
		if _, err := job.Status(ctx); err == nil {
			return false, fmt.Errorf("%w: job %s of an earlier export is there still, and would be taken for one of this: clean it up, or choose another ID", mapper.ErrArguments, job.ID)
		} else if !errors.Is(err, mapper.ErrNoSuchJob) {
			return false, err
		}
	}
	if r.run, err = claimFolder(ctx, r.bucket, folder, r.ID); err != nil {
		if r.load(ctx, name) == nil { // another start of this ID came before, and has begun to fill the folder
			return false, nil
		}
		return false, err
	}
	return true, nil
}

// Jobs returns the jobs of the export, as far as they have begun: over the entities, over the files, and of the deletion of parts.
func (r *Run) Jobs() [3]*mapper.Job {
	return [3]*mapper.Job{r.engine.Job(r.ID), r.engine.Job(r.ID + joinSuffix), r.engine.Job(r.ID + deleteSuffix)}
}

// Wait waits until the export has succeeded, and returns its manifest. It is an error if one of its jobs can't go on by itself, which the
// error says.
func (r *Run) Wait(ctx context.Context) (*Manifest, error) {
	for i, job := range r.Jobs() {
		status, err := awaitJob(ctx, job, i > 0)
		if err != nil {
			return nil, fmt.Errorf("export %s: %w", r.ID, err)
		}
		switch status.State {
		case mapper.Succeeded:
		case mapper.SucceededWithFailures:
			if i == 0 && r.allow {
				continue
			}
			return nil, fmt.Errorf("export %s: job %s has failed on %d entities: see its Failures, and Retry it", r.ID, job.ID, status.Failures)
		default:
			return nil, fmt.Errorf("export %s: job %s is %s: %s", r.ID, job.ID, status.State, status.Error)
		}
	}
	m, err := ReadManifest(ctx, r.bucket, r.Folder)
	if err == nil && m.Run != r.run {
		return nil, fmt.Errorf("export %s: the manifest in the folder %q is that of another export, %q", r.ID, r.Folder, m.Export)
	}
	return m, err
}

// awaitJob waits for a job, which another one has started just now, perhaps.
func awaitJob(ctx context.Context, job *mapper.Job, follows bool) (*mapper.Status, error) {
	for {
		status, err := job.Wait(ctx)
		if !follows || !errors.Is(err, mapper.ErrNoSuchJob) {
			return status, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// Discard deletes what an export has written that was aborted, has failed, or has failures that nobody retries, so that its
// folder is free. It is mapper.ErrState for one that goes on or has succeeded. Its jobs stay: clean them up, but do not go on with them.
func (r *Run) Discard(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("export: discard %s: %w", r.ID, err) }
	done := 0
	for _, job := range r.Jobs() {
		status, err := job.Status(ctx)
		if errors.Is(err, mapper.ErrNoSuchJob) {
			break
		}
		if err != nil {
			return fail(err)
		}
		if !status.State.Ended() {
			return fail(fmt.Errorf("%w: job %s is %s: abort it first", mapper.ErrState, job.ID, status.State))
		}
		if status.State == mapper.Succeeded || status.State == mapper.SucceededWithFailures && r.allow {
			done++
		}
	}
	if done == len(r.Jobs()) {
		return fail(fmt.Errorf("%w: it has succeeded: delete its folder", mapper.ErrState))
	}
	c, err := claimed(ctx, r.bucket, r.Folder)
	if err != nil {
		return fail(err)
	}
	ours := c != nil && c.Run == r.run
	if ours {
		if err := deleteAll(ctx, r.bucket, r.Folder+"/", map[string]bool{r.Folder + "/" + StartedName: true}); err != nil {
			return fail(err)
		}
	}
	for _, kind := range []string{partKind, fileKind} {
		if err := deleteEntities(ctx, r.engine.Client(), kind, r.run); err != nil {
			return fail(err)
		}
	}
	if ours {
		if err := dropClaim(ctx, r.bucket, r.Folder, r.run); err != nil {
			return fail(err)
		}
	}
	return nil
}

// deleteEntities deletes all entities of a kind that are a run's.
func deleteEntities(ctx context.Context, client *datastore.Client, kind, run string) error {
	q := datastore.NewQuery(kind).KeysOnly().Limit(500).
		FilterField("__key__", ">", datastore.NameKey(kind, entityName(run, ""), nil)).
		FilterField("__key__", "<", datastore.NameKey(kind, entityName(run, lastName), nil))
	for {
		keys, err := client.GetAll(ctx, q, nil)
		if err != nil || len(keys) == 0 {
			return err
		}
		if err := client.DeleteMulti(ctx, keys); err != nil {
			return err
		}
	}
}

// newID returns an ID for an export that was given none.
func newID() string {
	return time.Now().UTC().Format("20060102-150405-") + strconv.FormatUint(rand.Uint64(), 36)
}
