package export

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper"
)

// Count returns the number of files of an export that was started with [StartOptions].Hold. It
// first waits until all records are in parts. The number is StartOptions.Files or Options.Files, or
// else as few files as Options.FileBytes allows. If more than Options.MaxFiles are needed, Count
// returns an error. The parts are kept until [Export.Write] or [Run.Discard].
func (x *Export[P]) Count(ctx context.Context, r *Run) (int, error) {
	s, status, err := x.held(ctx, r)
	if err != nil {
		return 0, fmt.Errorf("export: count the files of %s: %w", r.ID, err)
	}
	next, _, err := nextStage(ctx, r.engine, s, joinSuffix)
	switch {
	case err != nil:
		return 0, fmt.Errorf("export: count the files of %s: %w", r.ID, err)
	case next != nil:
		return next.Files, nil
	}
	all, err := x.stretches(ctx, r.engine.Client(), s, status.Counters)
	if err != nil {
		return 0, fmt.Errorf("export: count the files of %s: %w", r.ID, x.orDiscarded(ctx, s, err))
	}
	return len(all), nil
}

// Write plans the files of an export that was started with StartOptions.Hold, and starts the job
// that writes them. It first waits until all records are in parts. Call [Run.Wait] to wait for the
// files. If files is 0, Write plans as many files as [Export.Count] says, or more if Options.Wrap
// returns longer texts for these params.
//
// Options.Name and Options.Wrap get these params. The function that makes the records has already
// got the params of [Export.Start]. Repeating Write with the same arguments has no effect. With
// other arguments the error is [mapper.ErrIDTaken].
func (x *Export[P]) Write(ctx context.Context, r *Run, files int, params P) error {
	fail := func(err error) error { return fmt.Errorf("export: write the files of %s: %w", r.ID, err) }
	if files < 0 || files > x.opts.MaxFiles {
		return fail(fmt.Errorf("%w: %d files, want 0 to %d", mapper.ErrInvalidArgument, files, x.opts.MaxFiles))
	}
	if err := (startParams[P]{Params: params}).Validate(); err != nil {
		return fail(fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err))
	}
	given, err := json.Marshal(params)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", mapper.ErrInvalidArgument, err))
	}
	s, status, err := x.held(ctx, r)
	if err != nil {
		return fail(err)
	}
	if files > 0 {
		s.Files = files
	}
	s.Params, s.Plan = given, planOf(s.Files, given)
	if err := x.plan(ctx, r.engine, status, s); err != nil {
		return fail(x.orDiscarded(ctx, s, err))
	}
	return nil
}

// held waits until all records of an export with StartOptions.Hold are in parts. It returns the
// parameters for the next stage, and the status of the first job.
func (x *Export[P]) held(ctx context.Context, r *Run) (stage, *mapper.Status, error) {
	status, err := r.Jobs()[0].Wait(ctx)
	if err != nil {
		return stage{}, nil, err
	}
	p, err := paramsOf(status, x.name)
	s := stage{Export: r.ID, Run: p.Run, Folder: p.Folder, Files: p.Files, Params: p.Params, Layout: p.Layout,
		Coding: p.Coding}
	switch {
	case err != nil:
	case p.Run != r.place.run:
		err = fmt.Errorf("%w: the ID belongs to another run, %s", mapper.ErrIDTaken, p.Run)
	case !p.Hold:
		err = setting.Errorf("%w: it was not started with StartOptions.Hold, so it writes its files by itself",
			mapper.ErrWrongState)
	case status.State == mapper.StateSucceededWithFailures && !x.opts.AllowFailures:
		err = fmt.Errorf("%w: job %s has failed on %d entities: see its Failures, and Retry it", mapper.ErrWrongState,
			r.ID,
			status.Failures)
	case status.State != mapper.StateSucceeded && status.State != mapper.StateSucceededWithFailures:
		err = fmt.Errorf("%w: job %s is %s: %s", mapper.ErrWrongState, r.ID, status.State, status.Error)
	}
	if err == nil {
		err = x.opts.checkCoding(s.Coding)
	}
	return s, status, err
}

// orDiscarded returns err, or an error that says that the run was discarded, if it was.
func (x *Export[P]) orDiscarded(ctx context.Context, s stage, err error) error {
	if discarded := s.place().wasDiscarded(ctx, x.bucket); discarded != nil {
		return discarded
	}
	return err
}

// planOf returns a text that identifies the arguments of a call of Write. Files planned by calls
// with different arguments can't be combined.
func planOf(files int, params []byte) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %s", files, params))
	return hex.EncodeToString(sum[:8])
}
