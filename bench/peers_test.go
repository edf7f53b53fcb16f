package bench

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"slices"
	"testing"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/option"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// accounts is the kind that a job and the compared loop change.
const accounts = "Account"

// An account is the entity that jobs and loops change. Every job adds 1 to it, and every loop adds
// loopRaise. So one read shows whether each run has changed it once.
type account struct {
	Balance int64
	Owner   string
	Email   string    `datastore:",noindex"`
	Created time.Time `datastore:",noindex"`
}

const loopRaise = 1_000_000

var raise = mapper.Update("raise", func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
	a.Value.Balance++
	return nil
})

// BenchmarkPeers compares a job with the loop that its user would write by hand instead (see peer),
// on each Datastore emulator that a machine can run. Its metrics are:
//
//   - x-loop is the job's speed divided by the loop's
//   - job-s and loop-s are their times in seconds; the job's is from the call of Start to its end
//   - the others are the job's calls to the Datastore for each page
//
// The loop runs before and after each job, so that changes of the emulator's speed favour neither.
// Every run must change every account once. An emulator that is not installed is skipped, with a
// line on the standard error.
//
//	go test ./bench -run '^$' -bench Peers -benchtime 1x -timeout 4h
//
// With -v it prints the calls of each job and their times. Large kinds come last. With 100,000
// entities one run takes minutes in Google's emulators, so these need a longer -timeout than the
// default.
func BenchmarkPeers(b *testing.B) {
	datastores := []*peerServers{{name: "embedded"}, {name: "classic", google: google.Classic},
		{name: "firestore", google: google.Firestore}}
	for _, n := range []int{20_000, 100_000} {
		for _, d := range datastores {
			var k *peers
			for _, workers := range []int{8, 32} {
				b.Run(fmt.Sprintf("%s/%d/%d", d.name, n, workers), func(row *testing.B) {
					d.start(b, row)
					if k == nil {
						k = newPeers(b, d, n)
					}
					k.compare(row, workers)
				})
			}
		}
	}
}

// peerServers are the processes of a Datastore emulator and of a Cloud Tasks emulator.
type peerServers struct {
	name   string
	google google.Product // Google's emulator; empty: this module's own
	at     addrs          // the addresses; set when the processes run
	warm   bool
	err    error // why the processes do not run
}

// start starts the processes once for all rows of a benchmark. It skips a row whose emulator is not
// installed.
func (p *peerServers) start(all, row *testing.B) {
	row.Helper()
	if p.at == (addrs{}) && p.err == nil {
		at := startServer(all)
		if p.google != "" {
			var server *google.Emulator
			if server, p.err = google.Start(all.Context(), p.google); p.err == nil {
				all.Cleanup(server.Close)
				at.datastore = server.Addr
			} else if errors.Is(p.err, google.ErrNotInstalled) {
				fmt.Fprintf(os.Stderr, "\n*** Peers/%s is LEFT OUT, nothing is known of it: %v\n\n", p.name, p.err)
			}
		}
		if p.err == nil {
			p.at = at
		}
	}
	switch {
	case errors.Is(p.err, google.ErrNotInstalled):
		row.Skip(p.err)
	case p.err != nil:
		row.Fatal(p.err)
	}
}

// peers is a database with accounts that jobs and loops change in turn.
type peers struct {
	servers     *peerServers
	project     string
	n           int
	jobs, loops int64 // how many jobs and loops have changed the accounts so far
	ended       chan time.Time
}

// newPeers fills a database with n accounts.
func newPeers(b *testing.B, servers *peerServers, n int) *peers {
	b.Helper()
	p := &peers{servers: servers, project: fmt.Sprintf("peers-%d", n), n: n, ended: make(chan time.Time, 1)}
	client := p.client(b)
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(8)
	for keys := range slices.Chunk(p.keys(), 500) {
		group.Go(func() error {
			all := make([]account, len(keys))
			for i, k := range keys {
				all[i] = account{Owner: fmt.Sprint("owner ", k.ID), Email: fmt.Sprintf("%d@example.com", k.ID),
					Created: time.Unix(k.ID, 0)}
			}
			_, err := client.PutMulti(ctx, keys, all)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
	return p
}

func (p *peers) keys() []*datastore.Key {
	keys := make([]*datastore.Key, p.n)
	for i := range keys {
		keys[i] = datastore.IDKey(accounts, int64(i+1), nil)
	}
	return keys
}

// client returns a client of the database.
func (p *peers) client(b *testing.B, opts ...grpc.DialOption) *datastore.Client {
	b.Helper()
	client, err := datastore.NewClient(b.Context(), p.project,
		option.WithGRPCConn(dial(b, p.servers.at.datastore,
			append(opts, grpc.WithChainUnaryInterceptor(mapper.ClientInterceptor()))...)),
		option.WithTelemetryDisabled())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { client.Close() })
	return client
}

// engine returns an engine whose queue delivers up to workers tasks at once.
func (p *peers) engine(b *testing.B, client *datastore.Client, workers int) *mapper.Engine {
	b.Helper()
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	queues, err := cloudtasks.NewClient(b.Context(), option.WithGRPCConn(dial(b, p.servers.at.tasks)),
		option.WithTelemetryDisabled())
	must(err)
	b.Cleanup(func() { queues.Close() })
	name := fmt.Sprintf("%s/queues/%s-%d-%d", location, p.project, workers, time.Now().UnixNano())
	_, err = queues.CreateQueue(b.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: name, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(workers),
				MaxDispatchesPerSecond: 500},
		}})
	must(err)
	front := httptest.NewUnstartedServer(nil)
	front.Start()
	b.Cleanup(front.Close)
	queue, err := tasks.NewQueue(queues, name, front.URL+"/", &tasks.Options{InsecureSkipVerify: true})
	must(err)
	ended := func(_ context.Context, c mapper.StateChange) {
		if c.To.Ended() {
			p.ended <- c.Time // this time is after the job's last commit
		}
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{raise},
		OnStateChange: ended})
	must(err)
	front.Config.Handler = engine.Handler()
	return engine
}

// compare measures jobs and loops with a number of workers.
func (p *peers) compare(b *testing.B, workers int) {
	var seen calls
	engine := p.engine(b, p.client(b, grpc.WithChainUnaryInterceptor(seen.intercept, mapper.ClientInterceptor())),
		workers)
	client := p.client(b)
	job := func() time.Duration {
		begun := time.Now()
		job, err := raise.Start(b.Context(), engine, mapper.Query{Kind: accounts}, mapper.NoParams{}, nil)
		if err != nil {
			b.Fatal(err)
		}
		s, err := job.Wait(b.Context())
		if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(p.n) {
			b.Fatalf("%+v, %v", s, err)
		}
		p.jobs++
		seen.pages += s.Pages
		return (<-p.ended).Sub(begun) // not the time when Wait returns, because Wait may notice the end late
	}
	loop := func() time.Duration {
		begun := time.Now()
		err := peer{client, workers, 500}.run(b.Context(), func(a *account) { a.Balance += loopRaise })
		if err != nil {
			b.Fatal(err)
		}
		p.loops++
		return time.Since(begun)
	}
	if !p.servers.warm {
		loop()
		job()
		seen.reset()
		p.servers.warm = true
	}
	var jobs, loops time.Duration
	for b.Loop() {
		loops += loop() / 2
		jobs += job()
		loops += loop() / 2
	}
	p.check(b, client)
	b.ReportMetric(loops.Seconds()/jobs.Seconds(), "x-loop")
	b.ReportMetric(jobs.Seconds()/float64(b.N), "job-s")
	b.ReportMetric(loops.Seconds()/float64(b.N), "loop-s")
	b.ReportMetric(float64(seen.total())/float64(seen.pages), "calls/page")
	b.ReportMetric(0, "ns/op")
	b.Logf("of %d pages in %v\n%v", seen.pages, jobs, &seen)
}

// check checks that every job and every loop so far has changed each account once.
func (p *peers) check(b *testing.B, client *datastore.Client) {
	b.Helper()
	want := p.jobs + p.loops*loopRaise
	group, ctx := errgroup.WithContext(b.Context())
	group.SetLimit(8)
	for keys := range slices.Chunk(p.keys(), 500) {
		group.Go(func() error {
			all := make([]account, len(keys))
			if err := client.GetMulti(ctx, keys, all); err != nil {
				return err
			}
			for i, a := range all {
				if a.Balance != want {
					return fmt.Errorf("%v has a balance of %d after %d jobs and %d loops, want %d", keys[i], a.Balance,
						p.jobs, p.loops, want)
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		b.Fatal(err)
	}
}
