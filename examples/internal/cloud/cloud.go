// Package cloud starts the services that the examples need, all on this machine: a Datastore, a
// queue, and a server that handles the queue's tasks.
package cloud

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// Datastores are the choices of a Datastore: the embedded one, Google's classic emulator in
// Firestore mode, and Google's Firestore emulator in Datastore mode.
var Datastores = []string{"embedded", "google", "firestore"}

// DatastoreUsage is the help text of the flag with which users choose one of Datastores.
const DatastoreUsage = "`one of`:\n" +
	"embedded, google (Google's classic emulator, in Firestore mode),\n" +
	"firestore (Google's Firestore emulator, in Datastore mode);\n" +
	"the last two need Java and those components of the Google Cloud CLI"

// Options are the settings of Start.
type Options struct {
	Datastore string        // one of Datastores
	Database  string        // the name of a database in which operations are not counted; empty: the default database
	Workers   int           // number of tasks that the queue delivers at once
	Latency   time.Duration // how long each call of the embedded Datastore takes
	Mappers   []mapper.AnyMapper
	Schedules []mapper.AnySchedule
	Keys      bool   // whether to serve the public keys of tokens: see Token
	Indexes   []byte // an index.yaml; the embedded Datastore then refuses queries that need further indexes
}

const (
	project   = "scattermap-example"
	location  = "projects/" + project + "/locations/local"
	queueName = location + "/queues/example"
)

// A Cloud is the running services, and an engine that runs jobs on them.
type Cloud struct {
	Client *datastore.Client
	Engine *mapper.Engine
	// Usage returns the operations of the Datastore so far that Google would bill.
	Usage func() emulator.Usage

	Dashboard string // the dashboard's URL

	open     func(ctx context.Context, opts ...option.ClientOption) (*datastore.Client, error)
	embedded *emulator.Emulator
	faults   *faults.Faults
	closers  []func()
}

// TaskOps returns the number of task operations that Google would have billed.
func (c *Cloud) TaskOps() int64 { return c.embedded.Usage().TaskOps }

// Slow switches the latency of the embedded Datastore's calls on or off.
func (c *Cloud) Slow(slow bool) {
	if slow {
		c.faults.Resume()
	} else {
		c.faults.Pause()
	}
}

// KeysURL returns the URL of the public keys of tokens, if Options.Keys is set.
func (c *Cloud) KeysURL() string { return c.embedded.KeysURL() }

// Token returns an OIDC token of an account for an audience, like the tokens of Cloud Scheduler.
func (c *Cloud) Token(account, audience string) (string, error) {
	return c.embedded.Token(account, audience)
}

// NewClient returns another client of the Datastore, with the given options.
func (c *Cloud) NewClient(ctx context.Context, opts ...option.ClientOption) (*datastore.Client, error) {
	return c.open(ctx, opts...)
}

// Close ends all services that Start has started.
func (c *Cloud) Close() {
	for _, f := range slices.Backward(c.closers) {
		f()
	}
}

// Start starts the services. Calls of the Datastore have no latency before a call of Slow.
func Start(ctx context.Context, o Options) (_ *Cloud, err error) {
	c := &Cloud{faults: faults.New(1)}
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if o.Latency > 0 {
		c.faults = faults.New(1,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.Uniform{Min: o.Latency, Max: o.Latency},
				Methods: []string{"Lookup", "RunQuery", "RunAggregationQuery", "BeginTransaction", "Commit"}})
	}
	c.faults.Pause()
	keysAddr := ""
	if o.Keys {
		keysAddr = "127.0.0.1:0"
	}
	datastoreAddr := ""
	if o.Database != "" {
		datastoreAddr = "127.0.0.1:0"
	}
	if c.embedded, err = emulator.Start(&emulator.Options{Faults: c.faults, KeysAddr: keysAddr,
		DatastoreAddr: datastoreAddr,
		Indexes:       o.Indexes}); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, c.embedded.Close)
	addr, err := c.openDatastore(ctx, o.Datastore)
	if err != nil {
		return nil, err
	}
	if o.Database != "" {
		c.Client.Close()
		c.open = func(ctx context.Context, opts ...option.ClientOption) (*datastore.Client, error) {
			return open(ctx, addr, o.Database, opts...)
		}
		if c.Client, err = c.open(ctx, mapper.ClientOption()); err != nil {
			return nil, err
		}
	}
	c.closers = append(c.closers, func() { c.Client.Close() })

	taskClient, err := c.embedded.TasksClient(ctx)
	if err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{
			Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(o.Workers)},
		}}); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	queue, err := tasks.NewQueue(taskClient, queueName, "http://"+listener.Addr().String()+"/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		return nil, err
	}
	// Log only warnings, because the examples show the progress of jobs themselves.
	warnings := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	if c.Engine, err = mapper.NewEngine(c.Client, queue,
		&mapper.EngineOptions{Mappers: o.Mappers, Schedules: o.Schedules,
			Logger: warnings}); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/mapper/", c.Engine.Handler())
	mux.Handle("/dashboard/",
		dashboard.NewHandler(c.Engine, &dashboard.Options{Allow: auth.Loopback, Logger: warnings}))
	c.Dashboard = "http://" + listener.Addr().String() + "/dashboard/"
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	c.closers = append(c.closers, func() { server.Close() })
	return c, nil
}

// openDatastore starts the Datastore with a name from Datastores. It returns the Datastore's
// address, or "" if only clients of this process reach it.
func (c *Cloud) openDatastore(ctx context.Context, name string) (addr string, err error) {
	product := map[string]google.Product{"google": google.Classic, "firestore": google.Firestore}[name]
	if product == "" {
		c.Usage = c.embedded.Usage
		c.open = func(ctx context.Context, opts ...option.ClientOption) (*datastore.Client, error) {
			return c.embedded.DatastoreClient(ctx, project, opts...)
		}
		c.Client, err = c.open(ctx, mapper.ClientOption())
		return c.embedded.DatastoreAddr(), err
	}
	server, err := google.Start(ctx, product)
	if err != nil {
		return "", fmt.Errorf("-datastore %s: %w", name, err)
	}
	c.closers = append(c.closers, server.Close)
	c.Usage = server.Usage
	c.open = func(ctx context.Context, opts ...option.ClientOption) (*datastore.Client, error) {
		return server.Datastore(ctx, project, opts...)
	}
	c.Client, err = c.open(ctx, mapper.ClientOption())
	return server.Addr, err
}

// open returns a client of a database at an address.
func open(ctx context.Context, addr, database string, opts ...option.ClientOption) (*datastore.Client, error) {
	return datastore.NewClientWithDatabase(ctx, project, database,
		append([]option.ClientOption{option.WithEndpoint(addr),
			option.WithoutAuthentication(), option.WithTelemetryDisabled(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials()))}, opts...)...)
}
