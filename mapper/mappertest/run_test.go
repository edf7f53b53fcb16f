package mappertest_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	_ "github.com/scattermap/scattermap/internal/testflag" // its flags reach every test below mapper/
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestRun runs a whole job, with and without faults. Each account must be credited once.
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

// TestNewClient writes with the Env's own client, and reads with another client that has an
// interceptor.
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

// TestEngineOptions sets options of the engine, and applies a function that starts another job.
func TestEngineOptions(t *testing.T) {
	var states []mapper.State
	starts := mapper.Visit("starts", func(ctx context.Context, a *mapper.Entity[account], p credit) error {
		_, err := addCredit.Start(ctx, mapper.EngineFromContext(ctx), mapper.Query{Kind: "Account"}, p,
			&mapper.StartOptions{ID: "of-" + a.Key.Name})
		return err
	})
	o := &mappertest.Options{Engine: mapper.EngineOptions{Retain: 10 * 24 * time.Hour,
		OnStateChange: func(_ context.Context, c mapper.StateChange) { states = append(states, c.To) }}}
	mappertest.Run(t, []mapper.AnyMapper{addCredit, starts}, o, func(t *testing.T, w *mappertest.Env) {
		key := datastore.NameKey("Account", "ann", nil)
		if _, err := w.Client.Put(t.Context(), key, &account{Balance: 5, Owner: "Ann"}); err != nil {
			t.Fatal(err)
		}
		r := mappertest.ApplyContext(w.WithEngine(t.Context()), t, starts, key, &account{}, credit{10})
		if r.Err != nil {
			t.Fatal(r.Err)
		}
		s, err := w.Engine.Job("of-ann").Wait(t.Context())
		if err != nil || s.Processed != 1 || s.Settings.Retain != 10*24*time.Hour {
			t.Errorf("%+v, %v", s, err)
		}
		synctest.Wait()
		if len(states) != 2 {
			t.Errorf("the states %q", states)
		}
	})
}

// TestRealServer uses a function that calls a real server in another process. The test must not
// hang, and must say which goroutine waits for the network.
func TestRealServer(t *testing.T) {
	const asked = "MAPPERTEST_REAL_SERVER"
	if url := os.Getenv(asked); url != "" {
		calls := mapper.Visit("calls", func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
			if err == nil {
				var answer *http.Response
				if answer, err = http.DefaultClient.Do(r); err == nil {
					_, _ = io.Copy(io.Discard, answer.Body)
					answer.Body.Close()
					return errors.New("unavailable")
				}
			}
			return err
		})
		mappertest.Run(t, []mapper.AnyMapper{calls}, nil, func(t *testing.T, w *mappertest.Env) {
			if _, err := w.Client.Put(t.Context(), datastore.NameKey("Account", "ann", nil), &account{}); err != nil {
				t.Fatal(err)
			}
			job, err := calls.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, nil)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = job.Wait(t.Context())
		})
		return
	}
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	child := exec.Command(os.Args[0], "-test.run", "^TestRealServer$")
	child.Env = append(os.Environ(), asked+"="+server.URL)
	said, err := child.CombinedOutput()
	if err == nil || !strings.Contains(string(said), "virtual time stands still") ||
		!strings.Contains(string(said), "emulator.HandlerTransport(handler)") ||
		!strings.Contains(string(said), "net/http.(*persistConn)") {
		t.Errorf("%v: %.5000s", err, said)
	}
}
