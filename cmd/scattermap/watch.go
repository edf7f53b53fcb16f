package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

func newWatch() *cobra.Command {
	var s service
	c := &cobra.Command{
		Use: "watch JOB", Short: "Follow a job to its end", Args: oneJob,
		Long: `Follows a job until it ends or is paused. A terminal shows a bar; other outputs get a line for each
change. Of an export, it follows all three jobs. An interrupt ends the command, not the job.`,
	}
	s.define(c.Flags())
	format := outputFlag(c.Flags())
	c.RunE = func(c *cobra.Command, args []string) error { return follow(c, &s, args[0], format) }
	return c
}

// lookEvery is the time between two reads of the status by the command watch. Tests make it shorter.
var lookEvery = time.Second

// Constants of the command watch: how often the status is printed, and how long a service may fail.
const (
	lineEvery = 10 * time.Second
	patient   = time.Minute // how long a service may fail to answer, if it has answered before

	fewFailures = 5 // the minimum number of failed reads in a row before the command gives up
)

// follow prints a job's progress until the job has ended or is paused. Then it prints the status in
// the given format. If the job belongs to an export, follow continues with the export's next job. A
// table has the status of each of these jobs. Other formats have only the last job's status.
func follow(c *cobra.Command, s *service, id string, format *output) error {
	now := new(mapper.Status)
	if err := s.call(c.Context(), http.MethodGet, id, nil, nil, now); err != nil {
		return err
	}
	var failures error // of the first job: an export may allow them
	for {
		var next *mapper.Status
		job, err := followJob(c, s, now)
		if err == nil {
			next, err = nextOfExport(c, s, job)
		}
		switch {
		case err != nil:
			return err
		case *format == table:
			_, err = fmt.Fprintln(c.OutOrStdout(), summary(job))
		case next == nil:
			err = format.write(c.OutOrStdout(), job)
		}
		if err == nil {
			err = outcomeOf(job)
		}
		if next == nil || err != nil && !errors.Is(err, errFailures) {
			return cmp.Or(err, failures)
		}
		now, failures = next, cmp.Or(failures, err)
	}
}

// nextOfExport returns the job that an export has started at the end of the given job, or nil if
// there is none. An export is three jobs: see package export.
func nextOfExport(c *cobra.Command, s *service, job *mapper.Status) (*mapper.Status, error) {
	run := runOf(job)
	if run == "" || job.State != mapper.StateSucceeded && job.State != mapper.StateSucceededWithFailures {
		return nil, nil
	}
	id, name, suffix := job.ID, job.Mapper, "-join"
	if base, ok := strings.CutSuffix(name, suffix); ok {
		id, name, suffix = strings.TrimSuffix(id, suffix), base, "-delete"
	}
	if !names.JobID(id + suffix) {
		return nil, nil
	}
	next, err := readPatiently(c, s, id+suffix)
	switch {
	case isMissing(err):
		return nil, nil
	case err != nil:
		return nil, err
	case next.Mapper != name+suffix || runOf(next) != run:
		return nil, nil
	}
	return next, nil
}

// runOf returns the run of the export to which a job belongs, or "" if it belongs to none.
func runOf(job *mapper.Status) string {
	var params struct {
		Run string `json:"run"`
	}
	if json.Unmarshal(job.Params, &params) != nil { // parameters of another mapper
		return ""
	}
	return params.Run
}

// followJob prints a job's progress until the job has ended or is paused, and returns its status.
func followJob(c *cobra.Command, s *service, job *mapper.Status) (_ *mapper.Status, err error) {
	show, done := plainLines(c.ErrOrStderr())
	if f, ok := c.ErrOrStderr().(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		show, done = bar(f)
	}
	defer done()
	for show(job); job.State == mapper.StateRunning; show(job) {
		if err := waitToLook(c, job.ID); err != nil {
			return nil, err
		}
		if job, err = readPatiently(c, s, job.ID); err != nil {
			return nil, err
		}
	}
	return job, nil
}

// waitToLook waits until the command must read the status of a job again.
func waitToLook(c *cobra.Command, id string) error {
	select {
	case <-c.Context().Done():
		return fmt.Errorf("you stopped watching, and the job %s goes on: %w", id, context.Cause(c.Context()))
	case <-time.After(lookEvery):
		return nil
	}
}

// readPatiently reads the status of a job. The service has answered before, so it may fail for a
// while.
func readPatiently(c *cobra.Command, s *service, id string) (*mapper.Status, error) {
	var failing time.Time // when the first of the failed reads was
	for failed := 1; ; failed++ {
		job := new(mapper.Status)
		err := s.call(c.Context(), http.MethodGet, id, nil, nil, job)
		switch {
		case err == nil:
			return job, nil
		case isMissing(err):
			return nil, err
		case failed == 1: // the answer may have taken long
			failing = time.Now()
		case failed >= fewFailures && time.Since(failing) > patient:
			return nil, err
		}
		if err := waitToLook(c, id); err != nil {
			return nil, err
		}
	}
}

// isMissing reports whether a service has answered that there is no such job.
func isMissing(err error) bool { return err != nil && strings.Contains(err.Error(), "no such job") }

// outcomeOf returns an error if a job has not succeeded.
func outcomeOf(job *mapper.Status) error {
	if job.State == mapper.StateSucceeded {
		return nil
	}
	say := fmt.Sprintf("\"scattermap describe %s\" says more", job.ID)
	if job.Failures > 0 {
		say = fmt.Sprintf("\"scattermap describe %s\" and \"scattermap failures %s\" say more", job.ID, job.ID)
	}
	outcome := errJob
	if job.State == mapper.StateSucceededWithFailures {
		outcome = errFailures
	}
	return fmt.Errorf("%w: %s is %q; %s", outcome, job.ID, job.State, say)
}

// total returns the estimated number of a job's entities. It is at least the number of processed
// ones.
func total(job *mapper.Status) int64 {
	return max(1, job.Processed+job.Failures+max(0, job.Remaining))
}

// bar returns two functions. The first one draws a job's progress as a bar, with the job's
// bottleneck. The second one ends the bar.
func bar(f *os.File) (show func(*mapper.Status), done func()) {
	b := progressbar.NewOptions64(1, progressbar.OptionSetWriter(f), progressbar.OptionSetItsString("entities"),
		progressbar.OptionShowCount(),
		progressbar.OptionShowIts(), progressbar.OptionSetWidth(30), progressbar.OptionClearOnFinish(),
		progressbar.OptionSetPredictTime(true))
	return func(job *mapper.Status) {
		what := job.ID + ": " + operator.Standing(job.State, job.Phase)
		if job.Bottleneck != "" {
			what += ", " + operator.Line(job.Bottleneck, 60)
		}
		if job.Failures > 0 {
			what += fmt.Sprintf(", %s failures", operator.Grouped(job.Failures))
		}
		b.Describe(what)
		all := total(job)
		if !job.State.Ended() {
			all = max(all, job.Processed+job.Failures+1) // so that the bar is full only when the job has ended
		}
		b.ChangeMax64(all)
		_ = b.Set64(job.Processed + job.Failures) // an error means only that the bar is not drawn
	}, func() { _ = b.Finish() }
}

// figures matches numbers and durations, such as 1m10s.
var figures = regexp.MustCompile(`[0-9][0-9.hms]*`)

// plainLines returns two functions. The first one prints a job's status as a line, and the second
// one does nothing. Within lineEvery after a line, another is printed only if the state, the phase,
// the failures or the words of the bottleneck have changed.
func plainLines(w io.Writer) (show func(*mapper.Status), done func()) {
	var last mapper.Status
	var printed time.Time
	return func(job *mapper.Status) {
		if job.State != mapper.StateRunning { // the final output says how the job ended
			return
		}
		tried := last.Phase == mapper.PhaseRetrying && job.Phase == mapper.PhaseProcessing // just one attempt
		if job.State == last.State && (job.Phase == last.Phase || tried) && job.Failures == last.Failures &&
			figures.ReplaceAllString(job.Bottleneck, "#") == figures.ReplaceAllString(last.Bottleneck, "#") &&
			time.Since(printed) < lineEvery {
			return
		}
		last, printed = *job, time.Now()
		fmt.Fprintln(w, summary(job))
	}, func() {}
}

// sorted returns an iterator over a map's entries in the order of the keys.
func sorted(m map[string]int64) iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}
