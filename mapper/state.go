package mapper

import (
	"context"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/observe"
)

// A StateChange is a change of a job's state: see [EngineOptions.OnStateChange].
type StateChange struct {
	ID, Mapper string
	Queue      string // the job's queue
	From, To   State  // the states before and after the change; From is empty for a start
	Time       time.Time

	// Cause is the reason in a few words, which contain no data of entities. Status.Error has the
	// whole text, which may contain such data.
	Cause string

	// By is the caller ([WithCaller]), and Reason is the caller's reason ([WithReason]). They are
	// empty if the job itself made the change, or if the context did not have them.
	By, Reason string

	// Processed and Failures are the numbers of entities so far. They are estimates if Estimated is
	// set. They are -1 if they could not be read within 10 s.
	Processed, Failures int64
	Estimated           bool
}

// WithCaller returns a context that says who makes a call. Pass it to methods that change jobs,
// such as [Job.Pause]. The argument who is a name, or the verified e-mail address of an account.
// The log, [Job.History] and [StateChange].By show up to 200 bytes of it.
func WithCaller(ctx context.Context, who string) context.Context { return observe.WithBy(ctx, who) }

// WithReason returns a context that says why a call is made. Pass it to methods that change jobs,
// such as [Job.Pause]. The log, [Job.History] and [StateChange].Reason show up to 500 bytes of it.
func WithReason(ctx context.Context, why string) context.Context { return observe.WithWhy(ctx, why) }

// A HistoryEntry is a change of a job by a caller or by one of the job's limits, or the job's end:
// see [Job.History].
type HistoryEntry struct {
	Time   time.Time `json:"time"`
	Action string    `json:"action"`           // such as "started", "paused" or "its failures are retried"
	By     string    `json:"by,omitempty"`     // see [WithCaller]
	Reason string    `json:"reason,omitempty"` // see [WithReason]
	State  State     `json:"state"`            // the job's state after the change
}

// hookOf converts a user's function OnStateChange for package observe. For nil it returns nil.
func hookOf(onState func(context.Context, StateChange)) func(context.Context, observe.Change) {
	if onState == nil {
		return nil
	}
	return func(ctx context.Context, c observe.Change) {
		s := StateChange{
			ID: c.Job.ID, Mapper: c.Job.Mapper, Queue: string(c.Job.Queue), From: State(c.From), To: State(c.Job.State),
			Time:  c.Time,
			Cause: c.Cause, By: c.By, Reason: c.Why, Processed: -1, Failures: -1, Estimated: c.Estimated,
		}
		if c.Counted {
			s.Processed, s.Failures = c.Totals.Processed, c.Totals.Failures
		}
		onState(ctx, s)
	}
}
