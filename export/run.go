package export

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/mapper"
)

// A Run is one run of an export. [Export.Start] and [Export.Find] return it. ID is the export's ID,
// and Folder its folder in the bucket ([StartOptions].Folder).
type Run struct {
	ID     string
	Folder string

	engine *mapper.Engine
	bucket *blob.Bucket
	place  place
	allow  bool // the value of Options.AllowFailures
}

// Find returns the export of an ID, for example in a process that did not start it. If there is
// none, the error is [mapper.ErrNoSuchJob].
func (x *Export[P]) Find(ctx context.Context, e *mapper.Engine, id string) (*Run, error) {
	r := &Run{ID: id, engine: e, bucket: x.bucket, allow: x.opts.AllowFailures}
	if err := r.load(ctx, x.name); err != nil {
		return nil, fmt.Errorf("export: find %q of %q: %w", id, x.name, err)
	}
	return r, nil
}

// load reads the run's fields from the parameters of its first job.
func (r *Run) load(ctx context.Context, name string) error {
	status, err := r.Jobs()[0].Status(ctx)
	if err != nil {
		return err
	}
	params, err := paramsOf(status, name)
	if err != nil {
		return err
	}
	r.place = place{params.Folder, params.Run, params.Layout == 0}
	r.Folder = params.Folder
	return nil
}

// paramsOf returns the parameters of an export's first job. If name is not empty and the job has
// another mapper, the error is mapper.ErrIDTaken.
func paramsOf(status *mapper.Status, name string) (p startParams[json.RawMessage], err error) {
	if name != "" && status.Mapper != name {
		return p, fmt.Errorf("%w: it is a job of %q", mapper.ErrIDTaken, status.Mapper)
	}
	if err := json.Unmarshal(status.Params, &p); err != nil {
		return p, fmt.Errorf("the job's parameters: %w", err)
	}
	return p, nil
}

// find reads the run's fields from its first job. If that job does not exist, find chooses a new
// random run. Nothing refers to this run until the job is recorded, so a refused start leaves
// nothing.
func (r *Run) find(ctx context.Context, name string) error {
	folder := r.Folder
	if err := r.load(ctx, name); !errors.Is(err, mapper.ErrNoSuchJob) {
		return err
	}
	jobs := r.Jobs()
	for _, job := range jobs[1:] {
		if _, err := job.Status(ctx); err == nil {
			return fmt.Errorf("%w: job %s of an earlier export is there still, and would be taken for one of "+
				"this: clean it up, or choose another ID", mapper.ErrInvalidArgument, job.ID)
		} else if !errors.Is(err, mapper.ErrNoSuchJob) {
			return err
		}
	}
	r.place = place{folder: folder, run: newRun()}
	return r.checkOld(ctx, folder)
}

// Jobs returns handles on the jobs of the three stages: over the entities, over the files, and over
// the parts to delete. The job of a later stage does not exist before the stage starts.
func (r *Run) Jobs() [3]*mapper.Job {
	return [3]*mapper.Job{r.engine.Job(r.ID), r.engine.Job(r.ID + joinSuffix), r.engine.Job(r.ID + deleteSuffix)}
}

// Wait waits until the export has succeeded, and returns its manifest. If one of the jobs stops and
// needs an operator, it returns an error that says what to do. If the manifest exists, Wait returns
// it, even if the last job has not succeeded, or jobs were cleaned up.
func (r *Run) Wait(ctx context.Context) (*Manifest, error) {
	var stopped error // why the last job has not succeeded
	jobs := r.Jobs()
	for i, job := range jobs {
		status, m, err := r.await(ctx, job, i > 0)
		if m != nil || err != nil {
			return m, err
		}
		switch {
		case r.succeeded(i, status):
			continue
		case status.State == mapper.StateSucceededWithFailures:
			stopped = fmt.Errorf("export %s: job %s has failed on %d entities: see its Failures, and Retry it", r.ID,
				job.ID, status.Failures)
		default:
			stopped = fmt.Errorf("export %s: job %s is %s: %s", r.ID, job.ID, status.State, status.Error)
		}
		if i < len(jobs)-1 {
			return nil, stopped
		}
	}
	m, err := r.manifest(ctx)
	switch {
	case err != nil:
		return nil, errors.Join(stopped, err)
	case m != nil:
		return m, nil
	case stopped != nil:
		return nil, stopped
	}
	return nil, fmt.Errorf("export %s: its jobs have succeeded, and the folder %q has no manifest of its run %s: "+
		"has somebody deleted it?", r.ID, r.Folder, r.place.run)
}

// manifest returns the run's manifest, or nil if it has none.
func (r *Run) manifest(ctx context.Context) (*Manifest, error) {
	m, err := r.place.decided(ctx, r.bucket)
	if err != nil {
		return nil, fmt.Errorf("export %s: read its manifest in %q: %w", r.ID, r.Folder, err)
	}
	if m == nil || m.Discarded {
		return nil, nil
	}
	return m, nil
}

// await waits for the end of a job, and returns its status. If follows is set, the end of another
// job starts this job, so it may not exist yet. A job may also be gone because the export has ended
// and its jobs were cleaned up. Then await returns the manifest.
func (r *Run) await(ctx context.Context, job *mapper.Job, follows bool) (*mapper.Status, *Manifest, error) {
	for wait := 100 * time.Millisecond; ; wait = min(2*wait, 10*time.Second) {
		status, err := job.Wait(ctx)
		if err == nil {
			return status, nil, nil
		}
		gone := errors.Is(err, mapper.ErrNoSuchJob)
		if gone {
			m, failed := r.manifest(ctx)
			if m != nil || failed != nil {
				return nil, m, failed
			}
		}
		if !gone || !follows {
			return nil, nil, fmt.Errorf("export %s: %w", r.ID, err)
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("export %s: %w", r.ID, ctx.Err())
		case <-time.After(wait):
		}
	}
}

// succeeded reports whether the job of a stage has ended so that the next stage can start.
func (r *Run) succeeded(stage int, status *mapper.Status) bool {
	return status.State == mapper.StateSucceeded ||
		status.State == mapper.StateSucceededWithFailures && stage == 0 && r.allow
}

// Discard deletes everything that an export has written. Use it for an export that was aborted, has
// failed, or has failures that nobody retries. If the export is still running or has succeeded, the
// error is [mapper.ErrWrongState]. An export with a manifest has succeeded, whatever the state of
// its jobs.
//
// A mark stays in the run's folder, so that late writes of the export do not count. The jobs stay,
// too. Clean them up ([mapper.Job.CleanUp]), and do not resume them.
func (r *Run) Discard(ctx context.Context) error {
	fail := func(err error) error { return fmt.Errorf("export: discard %s: %w", r.ID, err) }
	succeeded := fmt.Errorf("%w: it has succeeded: delete the folder %q", mapper.ErrWrongState, r.Folder)
	decided, err := r.place.decided(ctx, r.bucket)
	if err != nil {
		return fail(err)
	}
	if decided != nil && !decided.Discarded {
		return fail(succeeded)
	}
	done := true
	for i, job := range r.Jobs() {
		status, err := job.Status(ctx)
		if errors.Is(err, mapper.ErrNoSuchJob) {
			done = false
			break
		}
		if err != nil {
			return fail(err)
		}
		if !status.State.Ended() {
			return fail(fmt.Errorf("%w: job %s is %s: abort it first", mapper.ErrWrongState, job.ID, status.State))
		}
		if !r.succeeded(i, status) {
			done = false
		}
	}
	if done { // the run has succeeded, but its manifest was deleted
		return fail(succeeded)
	}
	// Everything that was read may have changed since. The mark decides that the run can't succeed
	// any more.
	decided, err = r.place.decide(ctx, r.bucket, r.place.discarded(r.ID))
	if err != nil {
		return fail(err)
	}
	if !decided.Discarded {
		return fail(succeeded)
	}
	if err := r.deleteBlobs(ctx); err != nil {
		return fail(err)
	}
	for _, kind := range []string{partKind, fileKind} {
		if err := deleteEntities(ctx, r.engine.Client(), kind, r.place.run); err != nil {
			return fail(err)
		}
	}
	return nil
}

// deleteBlobs deletes all blobs of a discarded run, except its mark. For a run of an older build,
// these are all blobs in the export's folder, except manifests and the folders of other runs. The
// claim of such a run, a blob that says which run uses the folder, is deleted last. If the claim is
// another run's, deleteBlobs deletes nothing.
func (r *Run) deleteBlobs(ctx context.Context) error {
	if r.place.direct {
		c, err := readClaim(ctx, r.bucket, r.Folder)
		if c.Run != r.place.run {
			return err
		}
	}
	err := deleteAll(ctx, r.bucket, r.place.path(""), func(name string) bool {
		first, _, _ := strings.Cut(name, "/")
		return name == ManifestName || r.place.direct && (name == StartedName || runFolder.MatchString(first))
	})
	if err != nil || !r.place.direct {
		return err
	}
	return dropClaim(ctx, r.bucket, r.place)
}

// deleteEntities deletes all entities of a kind that belong to a run.
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

// newID returns a new ID, for a start without one.
func newID() string {
	return time.Now().UTC().Format("20060102-150405-") + strconv.FormatUint(rand.Uint64(), 36)
}
