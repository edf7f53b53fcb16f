package lifecycle_test

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/store"
)

// TestChangeByAnother resumes a job, while another client resumes it, too. The database aborts the
// first commit, and refuses the read of the next attempt. Resume must succeed, because the job is
// in the wanted state.
func TestChangeByAnother(t *testing.T) {
	inWorld(t, new(function.Definition), func(w *world) {
		j := w.NewJob("j", "m")
		w.works = false
		w.Begin(j)
		w.must(w.Pause(w.Context(), j.Ref()))
		var mu sync.Mutex
		aborted, refused := false, false
		interfere := func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn,
			invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.HasSuffix(method, "/Commit") && !aborted:
				aborted = true
				w.must(w.Resume(w.Context(), j.Ref()))
				return status.Error(codes.Aborted, "somebody else was faster")
			case strings.HasSuffix(method, "/Lookup") && aborted && !refused:
				refused = true
				return status.Error(codes.PermissionDenied, "refused")
			}
			return invoke(ctx, method, req, reply, conn, opts...)
		}
		client, err := w.Emulator.DatastoreClient(w.Context(), "test",
			option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(interfere)))
		w.must(err)
		defer client.Close()
		jobs := *w.World.Jobs
		jobs.Store = store.New(client)
		w.must(jobs.Resume(w.Context(), j.Ref()))
		if !aborted || !refused || w.Job("j").State != record.Running {
			t.Errorf("aborted: %v, refused: %v, the job is %s", aborted, refused, w.Job("j").State)
		}
		time.Sleep(time.Hour)
	})
}
