package emulator

import (
	"context"
	"path"
	"sync"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/inject"
)

// callFaults makes the calls of both services go wrong, as its source decides.
type callFaults struct {
	source inject.Source

	mu sync.Mutex
	// transactions that AbortCommit has rolled back, until the client rolls them back
	aborted map[transactionKey]bool
}

// intercept is a grpc.UnaryServerInterceptor that causes the faults of a call.
func (f *callFaults) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	c := f.source.Call(path.Base(info.FullMethod), req)
	if err := wait(ctx, c.Delay/2); err != nil {
		return nil, err
	}
	if c.Lost != nil {
		return nil, c.Lost
	}
	var resp any
	var err error
	rollback, isRollback := req.(*datastorepb.RollbackRequest)
	switch {
	case c.Abort:
		err = f.abort(ctx, req.(*datastorepb.CommitRequest), info)
	case isRollback && f.wasAborted(rollback):
		resp = new(datastorepb.RollbackResponse)
	default:
		resp, err = handler(ctx, req)
	}
	if err := wait(ctx, c.Delay-c.Delay/2); err != nil {
		return nil, err
	}
	if c.AnswerLost != nil {
		return nil, c.AnswerLost
	}
	return resp, err
}

// abort rolls back the transaction that a commit names, so that it holds no locks. After an
// ABORTED, the Go client sends a rollback of its own, and retries only if this succeeds. The
// transaction is no longer open then, so a real rollback would fail. Because of wasAborted,
// intercept answers it with success instead.
func (f *callFaults) abort(ctx context.Context, req *datastorepb.CommitRequest, info *grpc.UnaryServerInfo) error {
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
func (f *callFaults) wasAborted(req *datastorepb.RollbackRequest) bool {
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
