package emulator

import (
	"context"
	"path"
	"slices"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// A callPlan has the faults that happen to one call.
type callPlan struct {
	lost       error // the error with which the call fails without an effect; nil: the call takes effect
	abort      bool
	answerLost error // the error that replaces the answer after the call took effect; nil: the answer stays
	delay      time.Duration
}

// plan draws the faults of a call, one rule after the other. When a rule prevents the call's
// effect, plan skips the remaining rules.
func (f *Faults) plan(method string, req any) callPlan {
	var p callPlan
	about := func(r *rule) bool {
		if !r.Kind.ofCalls() || p.lost != nil || p.abort || len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
			return false
		}
		switch r.Kind {
		case AbortCommit:
			commit, ok := req.(*datastorepb.CommitRequest)
			return ok && commit.GetTransaction() != nil
		case LoseAnswer:
			return p.answerLost == nil
		}
		return true
	}
	f.each(about, func(r *rule, d time.Duration) {
		switch r.Kind {
		case LoseCall:
			p.lost = status.Errorf(r.Code, "injected: %s was lost before its effect", method)
		case LoseAnswer:
			p.answerLost = status.Errorf(r.Code, "injected: the answer to %s was lost after its effect", method)
		case AbortCommit:
			p.abort = true
		}
		p.delay += d
	})
	return p
}

// intercept is a grpc.UnaryServerInterceptor that causes the faults of a call.
func (f *Faults) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	p := f.plan(path.Base(info.FullMethod), req)
	if err := wait(ctx, p.delay/2); err != nil {
		return nil, err
	}
	if p.lost != nil {
		return nil, p.lost
	}
	var resp any
	var err error
	rollback, isRollback := req.(*datastorepb.RollbackRequest)
	switch {
	case p.abort:
		err = f.abort(ctx, req.(*datastorepb.CommitRequest), info)
	case isRollback && f.wasAborted(rollback):
		resp = new(datastorepb.RollbackResponse)
	default:
		resp, err = handler(ctx, req)
	}
	if err := wait(ctx, p.delay-p.delay/2); err != nil {
		return nil, err
	}
	if p.answerLost != nil {
		return nil, p.answerLost
	}
	return resp, err
}

// abort rolls back the transaction that a commit names, so that it holds no locks. After an
// ABORTED, the Go client sends a rollback of its own, and retries only if this succeeds. The
// transaction is no longer open then, so a real rollback would fail. Because of wasAborted,
// intercept answers it with success instead.
func (f *Faults) abort(ctx context.Context, req *datastorepb.CommitRequest, info *grpc.UnaryServerInfo) error {
	if server, ok := info.Server.(datastorepb.DatastoreServer); ok {
		rollback := &datastorepb.RollbackRequest{ProjectId: req.ProjectId, DatabaseId: req.DatabaseId,
			Transaction: req.GetTransaction()}
		if _, err := server.Rollback(ctx, rollback); err != nil {
			return err // the transaction is not open, so the commit itself would fail with this error
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		f.aborted[transactionOf(rollback)] = true
	}
	return status.Error(codes.Aborted, "injected: too much contention on these datastore entities. please try again.")
}

// wasAborted reports whether a rollback is the first one of a transaction that abort has rolled
// back.
func (f *Faults) wasAborted(req *datastorepb.RollbackRequest) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	was := f.aborted[transactionOf(req)]
	delete(f.aborted, transactionOf(req))
	return was
}

// A transactionKey identifies a transaction among the transactions of all databases.
type transactionKey struct{ project, database, id string }

func transactionOf(req *datastorepb.RollbackRequest) transactionKey {
	return transactionKey{req.ProjectId, req.DatabaseId, string(req.Transaction)}
}

// wait waits for the time d. It returns an error if the call's context ends before.
func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
}
