package mapper_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
)

// TestLateAnswer has the answer to a start be lost until its job has failed: the log says that it
// was started, and once that it has failed.
func TestLateAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		m := mapper.Update("broken", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return mapper.Permanent(errors.New("broken"))
		})
		var log logged
		w := newWorld(t, setting{})
		w.observe(&log, nil, m)
		w.putAccounts(names(100))
		var late atomic.Bool
		lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			err := invoke(ctx, method, req, reply, cc, opts...)
			if c, ok := req.(*pb.CommitRequest); !ok || err != nil || len(c.Mutations) == 0 || late.Swap(true) {
				return err
			}
			time.Sleep(3 * time.Hour) // a sweep has found the job by then
			return status.Error(codes.Unavailable, "the answer is lost")
		}
		client, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(),
			option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(lose)))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		starter, err := mapper.NewEngine(client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{m}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		job, err := m.Start(t.Context(), starter, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j"})
		if err != nil {
			t.Fatal(err)
		}
		if s, err := job.Status(t.Context()); err != nil || s.State != mapper.StateFailed {
			t.Fatalf("%+v, %v", s, err)
		}
		var failed, started int
		for _, line := range log.lines() {
			if strings.HasPrefix(line, "ERROR job failed") {
				failed++
			}
			if line == "INFO job running j cause=started" {
				started++
			}
		}
		if failed != 1 || started != 1 {
			t.Errorf("the log says %d times that the job was started, and %d times that it has failed:\n%s", started,
				failed, strings.Join(log.lines(), "\n"))
		}
	})
}
