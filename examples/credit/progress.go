package main

import (
	"context"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/scattermap/scattermap/mapper"
)

// follow shows the progress of a job as a bar, with the rate and the remaining time, until the job
// has ended. It ignores errors of the bar.
func follow(ctx context.Context, job *mapper.Job, total int64, w io.Writer) (*mapper.Status, error) {
	bar := progressbar.NewOptions64(max(total, 1),
		progressbar.OptionSetWriter(w),
		progressbar.OptionSetDescription("crediting"),
		progressbar.OptionSetItsString("accounts"),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(),
		progressbar.OptionSetWidth(30),
		progressbar.OptionThrottle(50*time.Millisecond),
	)
	_ = bar.RenderBlank()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		show(ctx, job, bar)
	}()
	status, err := job.Wait(ctx)
	cancel()
	<-ended
	if err == nil {
		bar.Describe(string(status.State))
		move(bar, status.Processed)
	}
	_, _ = io.WriteString(w, "\n")
	return status, err
}

// move sets the progress of the bar. The status of a running job is an estimate, which may exceed
// the total. The bar would refuse such a value.
func move(bar *progressbar.ProgressBar, processed int64) {
	_ = bar.Set64(min(processed, bar.GetMax64()))
}

// show updates the bar until ctx ends. If it can't read a status, it tries again later; the call of
// Wait returns lasting errors.
func show(ctx context.Context, job *mapper.Job, bar *progressbar.ProgressBar) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if status, err := job.Status(ctx); err == nil {
				move(bar, status.Processed)
			}
		}
	}
}
