package main

import (
	"context"
	"io"
	"time"

	"github.com/schollz/progressbar/v3"

	"github.com/scattermap/scattermap/mapper"
)

// follow shows a bar with rate and time left until the job has ended.
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
	if err := bar.RenderBlank(); err != nil {
		return nil, err
	}
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
		if err := bar.Set64(min(status.Processed, max(total, 1))); err != nil {
			return nil, err
		}
	}
	_, _ = io.WriteString(w, "\n")
	return status, err
}

// show moves the bar until ctx ends. A status that can't be read now can be
// read later, and Wait says so if not.
func show(ctx context.Context, job *mapper.Job, bar *progressbar.ProgressBar) {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			if status, err := job.Status(ctx); err == nil {
				_ = bar.Set64(status.Processed)
			}
		}
	}
}
