package mappertest_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags reach every test below mapper/
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestRun runs a whole job, with and without faults. Each account is credited once.
func TestRun(t *testing.T) {
	for _, seed := range []uint64{0, 1, 2, 3} {
		mappertest.Run(t, []mapper.AnyMapper{addCredit}, &mappertest.Options{Seed: seed},
			func(t *testing.T, w *mappertest.Env) {
				var keys []*datastore.Key
				var accounts []account
				for i := range 300 {
					keys = append(keys, datastore.IDKey("Account", int64(i+1), nil))
					accounts = append(accounts, account{Balance: int64(i), Owner: "Ann"})
				}
				if _, err := w.Client.PutMulti(t.Context(), keys, accounts); err != nil {
					t.Fatal(err)
				}
				job, err := addCredit.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, credit{10},
					&mapper.StartOptions{PageSize: 20})
				if err != nil {
					t.Fatal(err)
				}
				w.ResumeFaults()
				time.Sleep(24 * time.Hour) // virtual
				w.PauseFaults()
				s, err := job.Status(t.Context())
				if err != nil || s.State != mapper.StateSucceeded || s.Counters["credited"] != 300 {
					t.Errorf("seed %d: %+v, %v", seed, s, err)
				}
				if err := w.Client.GetMulti(t.Context(), keys, accounts); err != nil {
					t.Fatal(err)
				}
				for i, a := range accounts {
					if a.Balance != int64(i)+10 {
						t.Errorf("seed %d: %v has %d", seed, keys[i], a.Balance)
					}
				}
			})
	}
}

// TestNewClient reads with a client with an interceptor what the Env's own client has written.
func TestNewClient(t *testing.T) {
	mappertest.Run(t, []mapper.AnyMapper{addCredit}, nil, func(t *testing.T, w *mappertest.Env) {
		calls := 0
		client, err := w.NewClient(option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(func(ctx context.Context,
			method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
			opts ...grpc.CallOption) error {
			calls++
			return invoke(ctx, method, req, reply, cc, opts...)
		})))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		key := datastore.IDKey("Account", 1, nil)
		if _, err := w.Client.Put(t.Context(), key, &account{Balance: 5}); err != nil {
			t.Fatal(err)
		}
		var a account
		if err := client.Get(t.Context(), key, &a); err != nil || a.Balance != 5 || calls != 1 {
			t.Errorf("%+v, %v, after %d calls", a, err, calls)
		}
	})
}
