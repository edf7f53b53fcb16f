package emulator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"sync"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator/internal/dsemu"
	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/meter"
	"github.com/scattermap/scattermap/emulator/internal/rest"
	"github.com/scattermap/scattermap/emulator/internal/tasksemu"
	"github.com/scattermap/scattermap/internal/intercept"
)

// Usage is a number of operations that Google would bill.
type Usage = billing.Usage

// Options say how an [Emulator] behaves. The zero value of each field is its
// default.
type Options struct {
	// ScatterOneIn is the proportion of entities that have the __scatter__ property:
	// one in this many. 2 is the proportion of Google's classic emulator.
	// Defaults to 128, production's.
	ScatterOneIn int

	// QueryBatchSize is the most results that one call of a query returns; a client asks
	// again for the next ones. Defaults to 300.
	QueryBatchSize int

	// PessimisticConcurrency has transactions lock what they read, so that other writers
	// wait for them. By default concurrency is optimistic: a transaction whose
	// reads have changed conflicts when it commits. In production this is a
	// setting of the database.
	PessimisticConcurrency bool

	// Indexes are the contents of an index.yaml. With them, a query that needs a
	// composite index which is not among them is refused, as in production, with
	// the index to add. Defaults to nil: any query is served.
	Indexes []byte

	// Retention is how far back reads with a read_time can look. Versions are kept
	// in memory for that long. Defaults to 1h, production's without point-in-time
	// recovery.
	Retention time.Duration

	// PointInTimeRecovery has the Datastore do what production does with point-in-time recovery: of
	// what is older than an hour whole minutes can be read. Retention defaults to seven days then.
	PointInTimeRecovery bool

	// VersionMemory is how many bytes of memory old versions may take in each database,
	// about: those that only reads of the past see, and deleted entities. Beyond it the
	// oldest ones are dropped before their time. Reads of a time at which they were
	// there are refused then, as are reads from before Retention. What an open
	// transaction may read stays. Defaults to 256 MiB; a negative value is no limit.
	VersionMemory int64

	// IndexMemory is how many bytes of memory indexes may take in each database, about.
	// An index is built when a query first needs it. Beyond this memory some are dropped,
	// first those that queries have not used for long; they are built again when a query
	// needs them. Defaults to 1 GiB.
	IndexMemory int64

	// Seed decides which ids are allocated. Defaults to 0, a seed like others.
	Seed uint64

	// DatastoreAddr is an address on which the Datastore listens, for other
	// processes: "127.0.0.1:8081", or "127.0.0.1:0" for a free port. GET / is answered
	// there, too, for scripts that wait. Defaults to none: only clients of this process
	// reach it.
	DatastoreAddr string

	// TasksAddr is an address on which Cloud Tasks listens, for gRPC and for its REST
	// API as JSON. Defaults to none.
	TasksAddr string

	// KeysAddr is an address on which the public keys of the tokens that tasks
	// carry are served over HTTP, as Google serves its own. Defaults to none.
	KeysAddr string

	// Transport carries the deliveries of tasks: see [HandlerTransport] for one
	// that stays inside the process. Defaults to HTTP.
	Transport http.RoundTripper

	// UnlimitedRate allows queues of more than 500 dispatches a second, Cloud
	// Tasks' limit. Defaults to false.
	UnlimitedRate bool

	// ReuseQueueNames allows a queue to be created by the name of one that was
	// deleted: it has nothing of the old one. Production refuses that for up to 72
	// hours, and so does an Emulator by default.
	ReuseQueueNames bool

	// Faults make calls and deliveries go wrong. They belong to one emulator.
	// Defaults to none.
	Faults *Faults

	// Interceptor sees every call of both services, and can delay it or make it
	// fail before or after its effect; calls that Faults lose it does not see.
	// The results of queries and lookups that pass through it have their entities
	// in encoded form. Defaults to none.
	Interceptor grpc.UnaryServerInterceptor
}

func (o *Options) withDefaults() Options {
	var opts Options
	if o != nil {
		opts = *o
	}
	if opts.ScatterOneIn == 0 {
		opts.ScatterOneIn = 128
	}
	if opts.QueryBatchSize == 0 {
		opts.QueryBatchSize = 300
	}
	if opts.Retention == 0 && opts.PointInTimeRecovery {
		opts.Retention = 7 * 24 * time.Hour
	} else if opts.Retention == 0 {
		opts.Retention = time.Hour
	}
	if opts.VersionMemory == 0 {
		opts.VersionMemory = 256 << 20
	} else if opts.VersionMemory < 0 {
		opts.VersionMemory = math.MaxInt64
	}
	if opts.IndexMemory == 0 {
		opts.IndexMemory = 1 << 30
	}
	if opts.Transport == nil {
		transport := http.DefaultTransport.(*http.Transport).Clone()
		transport.Proxy = nil
		transport.MaxIdleConns = 0
		transport.MaxIdleConnsPerHost = 5000 // the most deliveries that a queue has under way
		opts.Transport = transport
	}
	return opts
}

func (o Options) validate() error {
	switch {
	case o.ScatterOneIn < 1 || o.ScatterOneIn > 1<<16:
		return fmt.Errorf("emulator: Options.ScatterOneIn has to be in [1, %d], it is %d", 1<<16, o.ScatterOneIn)
	case o.Retention < 0:
		return fmt.Errorf("emulator: Options.Retention has to be at least 0, it is %v", o.Retention)
	case o.IndexMemory < 0:
		return fmt.Errorf("emulator: Options.IndexMemory has to be at least 0, it is %d", o.IndexMemory)
	case o.QueryBatchSize < 1:
		return fmt.Errorf("emulator: Options.QueryBatchSize has to be at least 1, it is %d", o.QueryBatchSize)
	}
	return nil
}

// An Emulator is a Datastore and a Cloud Tasks in this process.
type Emulator struct {
	datastore, tasks *service
	datastoreServer  *dsemu.Server
	tasksServer      *tasksemu.Server
	ready            *http.Server
	rest             *http.Server
	restConn         *grpc.ClientConn
	keys             *http.Server
	keysAddr         string
	meter            *meter.Meter
}

// Start starts an emulator. It has to be closed.
func Start(o *Options) (_ *Emulator, err error) {
	opts := o.withDefaults()
	if err := opts.validate(); err != nil {
		return nil, err
	}
	var enforced *indexes.Set
	if opts.Indexes != nil {
		if enforced, err = indexes.Parse(opts.Indexes); err != nil {
			return nil, fmt.Errorf("emulator: Options.Indexes: %w", err)
		}
	}
	e := &Emulator{meter: new(meter.Meter)}
	attached := false
	defer func() {
		if err != nil {
			e.Close()
		}
		if err != nil && attached {
			opts.Faults.detach()
		}
	}()
	interceptors := []grpc.UnaryServerInterceptor{e.meter.UnaryServerInterceptor()}
	if opts.Faults != nil {
		if err := opts.Faults.attach(); err != nil {
			return nil, err
		}
		attached = true
		// Outside: what they lose is lost on the way, and counted all the same.
		interceptors = append(interceptors, opts.Faults.intercept)
	}
	if opts.Interceptor != nil {
		interceptors = append(interceptors, opts.Interceptor)
	}
	e.datastore, err = startService(opts.DatastoreAddr, interceptors, func(s *grpc.Server) {
		e.datastoreServer = dsemu.NewServer(dsemu.Options{
			Scatter: opts.ScatterOneIn, Batch: opts.QueryBatchSize, Seed: opts.Seed, Retention: opts.Retention,
			PointInTime: opts.PointInTimeRecovery, Pessimistic: opts.PessimisticConcurrency, Indexes: enforced,
			VersionMemory: opts.VersionMemory, IndexMemory: opts.IndexMemory,
		}, e.meter)
		datastorepb.RegisterDatastoreServer(s, e.datastoreServer)
	})
	if err != nil {
		return nil, fmt.Errorf("emulator: Datastore: %w", err)
	}
	if e.datastore.other != nil {
		e.ready = &http.Server{Handler: rest.Ready("Datastore"), ReadHeaderTimeout: 10 * time.Second}
		go e.ready.Serve(e.datastore.other)
	}
	tasksOptions := tasksemu.Options{Transport: opts.Transport, Unlimited: opts.UnlimitedRate,
		ReuseNames: opts.ReuseQueueNames}
	if opts.Faults != nil {
		tasksOptions.Faults = taskFaults{opts.Faults}
	}
	e.tasksServer = tasksemu.NewServer(tasksOptions, e.meter)
	e.tasks, err = startService(opts.TasksAddr, interceptors, func(s *grpc.Server) { e.tasksServer.Register(s) })
	if err == nil {
		err = e.serveREST()
	}
	if err != nil {
		return nil, fmt.Errorf("emulator: Cloud Tasks: %w", err)
	}
	if opts.KeysAddr != "" {
		if err := e.serveKeys(opts.KeysAddr); err != nil {
			return nil, fmt.Errorf("emulator: keys: %w", err)
		}
	}
	return e, nil
}

// serveREST serves the JSON of Cloud Tasks where its gRPC is served, for other processes.
func (e *Emulator) serveREST() error {
	if e.tasks.other == nil {
		return nil
	}
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(e.tasks.dial), grpc.WithIdleTimeout(0))
	if err != nil {
		return err
	}
	e.restConn = conn
	e.rest = &http.Server{Handler: rest.Handler(cloudtaskspb.NewCloudTasksClient(conn)),
		ReadHeaderTimeout: 10 * time.Second}
	go e.rest.Serve(e.tasks.other)
	return nil
}

func (e *Emulator) serveKeys(addr string) error {
	listener, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
	e.keysAddr = listener.Addr().String()
	e.keys = &http.Server{Handler: e.tasksServer.Keys()}
	go e.keys.Serve(listener)
	return nil
}

// Close ends both services: deliveries under way are cut off. Clients have to
// be closed by whoever made them.
func (e *Emulator) Close() {
	if e.tasksServer != nil {
		e.tasksServer.Close()
	}
	if e.keys != nil {
		e.keys.Close()
	}
	if e.ready != nil {
		e.ready.Close()
	}
	if e.rest != nil {
		e.rest.Close()
		_ = e.restConn.Close()
	}
	for _, s := range []*service{e.tasks, e.datastore} {
		if s != nil {
			s.stop()
		}
	}
}

// Reset empties both services, between two tests: all queues with their tasks and
// names, and then all databases with their transactions. It cuts off deliveries
// under way and waits for their end; a handler that does not look at its context
// may go on. Clients stay connected, and [Emulator.Usage] goes on to count.
func (e *Emulator) Reset() {
	e.tasksServer.Reset()
	e.datastoreServer.Reset()
}

// DatastoreClient returns a client of a project's default database, which mapper.NewEngine takes.
// It has to be closed before the emulator.
func (e *Emulator) DatastoreClient(
	ctx context.Context, project string, opts ...option.ClientOption,
) (*datastore.Client, error) {
	all := append(e.datastore.clientOptions(), intercepted())
	return datastore.NewClient(ctx, project, append(all, opts...)...)
}

// intercepted is mapper.ClientOption.
func intercepted() option.ClientOption {
	return option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(intercept.Unary))
}

// TasksClient returns a client. It has to be closed before the emulator.
func (e *Emulator) TasksClient(ctx context.Context, opts ...option.ClientOption) (*cloudtasks.Client, error) {
	return cloudtasks.NewClient(ctx, append(e.tasks.clientOptions(), opts...)...)
}

// DatastoreAddr is where the Datastore listens, the value for
// DATASTORE_EMULATOR_HOST, or "" if it does not.
func (e *Emulator) DatastoreAddr() string { return e.datastore.addr }

// TasksAddr is where Cloud Tasks listens, or "" if it does not.
func (e *Emulator) TasksAddr() string { return e.tasks.addr }

// KeysURL is where the public keys of the tokens are served, or "" if they are
// not.
func (e *Emulator) KeysURL() string {
	if e.keysAddr == "" {
		return ""
	}
	return "http://" + e.keysAddr + "/"
}

// Token returns an OIDC token as deliveries carry them, for an account and an
// audience.
func (e *Emulator) Token(account, audience string) (string, error) {
	return e.tasksServer.Token(account, audience)
}

// Usage returns what Google would have billed so far.
func (e *Emulator) Usage() Usage { return e.meter.Usage() }

// A service is a gRPC server that is reached in memory, and maybe at a port.
type service struct {
	server *grpc.Server
	memory *bufconn.Listener
	other  net.Listener // connections at the port that are not gRPC
	addr   string
	serves sync.WaitGroup
}

// maxMessage lets a request reach the service that is above the 10 MiB which
// Datastore takes, so that the service can refuse it.
const maxMessage = 16 << 20

func startService(addr string, interceptors []grpc.UnaryServerInterceptor, register func(*grpc.Server),
) (*service, error) {
	s := &service{
		server: grpc.NewServer(
			grpc.ChainUnaryInterceptor(interceptors...),
			grpc.MaxRecvMsgSize(maxMessage),
			// The Datastore client pings every minute, whether it has calls or not.
			grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 10 * time.Second,
				PermitWithoutStream: true}),
		),
		memory: bufconn.Listen(1 << 20),
	}
	register(s.server)
	listeners := []net.Listener{s.memory}
	if addr != "" {
		listener, err := net.Listen("tcp", addr)
		if err != nil {
			return nil, err
		}
		s.addr = listener.Addr().String()
		listener, s.other = rest.Split(listener)
		listeners = append(listeners, listener)
	}
	for _, l := range listeners {
		s.serves.Go(func() {
			if err := s.server.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
				panic("emulator: " + err.Error()) // the listener broke under us
			}
		})
	}
	return s, nil
}

func (s *service) stop() {
	s.server.Stop()
	s.serves.Wait()
}

// dial connects in memory.
func (s *service) dial(ctx context.Context, _ string) (net.Conn, error) {
	return s.memory.DialContext(ctx)
}

// clientOptions connect a client in memory, with the retries and limits that
// the client sets up for production.
func (s *service) clientOptions() []option.ClientOption {
	return append(insecureOptions("passthrough:///memory"),
		option.WithGRPCDialOption(grpc.WithContextDialer(s.dial)),
		// A connection in memory need not rest. Where it does, after half an hour, gRPC
		// 1.83 has a data race with the next call; in virtual time that is often.
		option.WithGRPCDialOption(grpc.WithIdleTimeout(0)))
}

func insecureOptions(endpoint string) []option.ClientOption {
	return []option.ClientOption{
		option.WithEndpoint(endpoint),
		option.WithoutAuthentication(),
		option.WithTelemetryDisabled(),
		option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
	}
}
