package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
)

// jobID is the ID of the job that the command runs.
const jobID = "spring-credit"

// An act is something that happens to the service or the job while the job runs.
type act int

const (
	actTerm   act = iota // an instance gets SIGTERM
	actKill              // an instance is killed
	actDeploy            // another revision is deployed, without requests yet
	actShift             // the newest revision gets a share of the requests
	actRetire            // the instances of all other revisions get SIGTERM
	actPause             // the job is paused until the service has no instances
)

// An event is an act that is due after a number of calls of the job's function.
type event struct {
	after   int
	act     act
	percent int // for actShift: the share of the requests
}

// rollout has the shares of the requests, in percent, that a new revision gets one after the other.
var rollout = []int{10, 50, 100}

// script returns the events that happen while the job runs, in order.
func script(c config) (all []event) {
	part := func(i, n int) int { return c.entities * (i + 1) / (n + 1) }
	for i := range c.term {
		all = append(all, event{after: part(i, c.term+c.kill), act: actTerm})
	}
	for i := range c.kill {
		all = append(all, event{after: part(c.term+i, c.term+c.kill), act: actKill})
	}
	if c.rollout {
		all = append(all, event{after: part(0, len(rollout)), act: actDeploy})
		for i, percent := range rollout {
			all = append(all, event{part(i, len(rollout)), actShift, percent})
		}
	}
	if c.pause {
		all = append(all, event{after: part(0, 1), act: actPause})
	}
	slices.SortStableFunc(all, func(a, b event) int { return a.after - b.after })
	return all
}

// An observer checks whether the statuses that an operator sees can be true.
type observer struct {
	last   *mapper.Status
	paused bool // whether the operator has paused the job
}

// see returns an error if a status can't be true. It compares the status with earlier ones, and
// with the number of calls of the function so far (called).
func (o *observer) see(s *mapper.Status, called int) error {
	last := o.last
	o.last = s
	switch {
	case last != nil && last.State.Ended() && s.State != last.State:
		return fmt.Errorf("the job was %s, and is %s", last.State, s.State)
	case s.State == mapper.StatePaused != o.paused:
		return fmt.Errorf("the job is %s, and an operator has paused it: %v", s.State, o.paused)
	case s.Processed+s.Failures > int64(called) && !s.Estimated:
		return fmt.Errorf("%d accounts are said to be processed, and the function was called %d times",
			s.Processed+s.Failures, called)
	case last != nil && s.Processed < last.Processed && !s.Estimated && !last.Estimated:
		return fmt.Errorf("%d accounts were said to be processed, and now %d", last.Processed, s.Processed)
	}
	return nil
}

// settled returns an error if the job's status disagrees with the accounts. No task of the job may
// run at that time.
func settled(s *mapper.Status, c config, t bank.Tally) error {
	credited := t.Accounts - t.Wrong
	if c.amount != 0 && !s.Estimated && s.Processed != credited {
		return fmt.Errorf("%d accounts are said to be processed, and %d are", s.Processed, credited)
	}
	return nil
}

// An operation is one job, run through the service's API from the start to the end.
type operation struct {
	*service
	config
	screen   *screen
	observer observer
	events   []event
	settings string // further settings of the job, as members of a JSON object; each member follows a comma
}

// start starts the job through the service's API.
func (o *operation) start(ctx context.Context) error {
	body := fmt.Sprintf(`{"mapper": "add-credit", "id": %q, "query": {"kind": "Account"}, "params": {"Amount": %d}%s}`,
		jobID, o.amount, o.settings)
	o.screen.print("\nAn operator starts a job through the API:\n  POST %s/jobs %s\n", o.url, body)
	return o.call(ctx, "POST", "/jobs", body, nil)
}

// status reads the job's status through the API, and checks it.
func (o *operation) status(ctx context.Context) (*mapper.Status, error) {
	s := new(mapper.Status)
	if err := o.call(ctx, "GET", "/jobs/"+jobID, "", s); err != nil {
		return nil, err
	}
	why := ""
	if o.observer.last != nil {
		why = o.observer.last.Bottleneck
	}
	if s.Bottleneck != why && s.Bottleneck != "" {
		o.screen.say("the job's status says: %s", s.Bottleneck)
	}
	o.screen.progress(s)
	return s, o.observer.see(s, o.called())
}

// follow reads the job's status until the job has ended. Meanwhile it carries out the events that
// are due.
func (o *operation) follow(ctx context.Context) (*mapper.Status, error) {
	for {
		s, err := o.status(ctx)
		switch {
		case err != nil:
			return nil, err
		case s.State.Ended() && len(o.events) > 0:
			return nil, fmt.Errorf("the job ended before all had happened: it needs more -entities, or more -latency")
		case s.State.Ended():
			return s, nil
		}
		for range 20 {
			if err := o.happen(ctx); err != nil {
				return nil, err
			}
			if err := sleep(ctx, 5*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
}

// happen carries out the next event if it is due.
func (o *operation) happen(ctx context.Context) error {
	if len(o.events) == 0 || o.called() < o.events[0].after {
		return nil
	}
	switch e := o.events[0]; e.act {
	case actTerm, actKill:
		if !o.disturb(e.act == actKill) {
			return nil // no instance exists now
		}
	case actDeploy:
		o.deployNext()
	case actShift:
		o.shift(e.percent)
	case actRetire:
		o.retire()
	case actPause:
		if err := o.rest(ctx); err != nil {
			return err
		}
	}
	o.events = o.events[1:]
	return nil
}

// rest pauses the job, waits until the service has no instance, and resumes the job.
func (o *operation) rest(ctx context.Context) error {
	o.screen.say("an operator pauses the job")
	if err := o.call(ctx, "POST", "/jobs/"+jobID+"/pause?reason=lunch", "", nil); err != nil {
		return err
	}
	o.observer.paused = true
	if err := o.quiet(ctx); err != nil {
		return err
	}
	o.screen.say("an operator resumes the job")
	o.observer.paused = false
	if err := o.call(ctx, "POST", "/jobs/"+jobID+"/resume", "", nil); err != nil {
		return err
	}
	return nil
}

// quiet waits until the service has no instance. Then it compares the job's status, which a new
// instance reads, with the accounts.
func (o *operation) quiet(ctx context.Context) error {
	if err := o.empty(ctx); err != nil {
		return err
	}
	o.screen.say("the service has no instances; an operator asks for the job's status")
	s, err := o.status(ctx)
	if err != nil {
		return err
	}
	tally, err := bank.ReadAccounts(ctx, o.client, int64(o.amount))
	if err != nil {
		return fmt.Errorf("read the accounts: %w", err)
	}
	return settled(s, o.config, tally)
}

// empty waits until the service has no instance.
func (o *operation) empty(ctx context.Context) error {
	for o.there() > 0 {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// listed returns an error if the list of jobs disagrees with the job's status.
func (o *operation) listed(ctx context.Context) error {
	var list struct{ Jobs []mapper.JobInfo }
	if err := o.call(ctx, "GET", "/jobs", "", &list); err != nil {
		return err
	}
	if len(list.Jobs) != 1 || list.Jobs[0].ID != jobID || list.Jobs[0].State != o.observer.last.State {
		return fmt.Errorf("the list of jobs is %+v, and the status %s", list.Jobs, o.observer.last.State)
	}
	return nil
}

// sleep waits for the time d. If ctx ends before, it returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// proven returns an error unless the job's records prove that each account was processed.
func (o *operation) proven(ctx context.Context) error {
	proof, err := mapper.VerifyJob(ctx, o.client, jobID, nil)
	if err == nil {
		err = proof.Err()
	}
	if err != nil {
		return fmt.Errorf("verify the job: %w", err)
	}
	return nil
}
