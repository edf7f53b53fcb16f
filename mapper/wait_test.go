package mapper_test

import (
	"context"
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

// TestWaitOutlastsReads waits for a job while its reads take minutes and fail then, as on a machine
// that stood still: four in a row end no wait, and reads that all fail do.
func TestWaitOutlastsReads(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		fails int64
		takes time.Duration
		ends  bool
	}{{4, 10 * time.Minute, true}, {25, time.Second, true}, {1 << 40, time.Second, false}, {1 << 40, time.Hour,
		false}} {
		synctest.Test(t, func(t *testing.T) {
			m := mapper.Visit("slow", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
				time.Sleep(20 * time.Second)
				return nil
			})
			w := newWorld(t, setting{})
			w.observe(new(logged), nil, m)
			w.putAccounts(names(30))
			var begun atomic.Bool
			var left atomic.Int64
			left.Store(test.fails)
			fail := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn,
				invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				if _, ok := req.(*pb.LookupRequest); ok && begun.Load() && left.Add(-1) >= 0 {
					time.Sleep(test.takes)
					return status.Error(codes.DeadlineExceeded, "it takes too long")
				}
				return invoke(ctx, method, req, reply, cc, opts...)
			}
			client, err := w.emulator.DatastoreClient(t.Context(), "test", mapper.ClientOption(),
				option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(fail)))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			starter, err := mapper.NewEngine(client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{m}})
			if err != nil {
				t.Fatal(err)
			}
			job, err := m.Start(t.Context(), starter, mapper.Query{Kind: "Account"}, mapper.NoParams{},
				&mapper.StartOptions{ID: "j"})
			if err != nil {
				t.Fatal(err)
			}
			begun.Store(true)
			s, err := job.Wait(t.Context())
			switch {
			case test.ends && (err != nil || s.State != mapper.StateSucceeded):
				t.Errorf("%d reads that take %v: %+v, %v", test.fails, test.takes, s, err)
			case !test.ends && (err == nil || !strings.Contains(err.Error(), "takes too long")):
				t.Errorf("reads that take %v, and all fail: %+v, %v", test.takes, s, err)
			}
			left.Store(0)
			if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
				t.Errorf("%+v, %v", s, err)
			}
		})
	}
}
