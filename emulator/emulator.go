package emulator

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // some clients compress their requests
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/test/bufconn"

	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/emulator/internal/dial"
	"github.com/scattermap/scattermap/emulator/internal/dsemu"
	"github.com/scattermap/scattermap/emulator/internal/indexes"
	"github.com/scattermap/scattermap/emulator/internal/inject"
	"github.com/scattermap/scattermap/emulator/internal/meter"
	"github.com/scattermap/scattermap/emulator/internal/rest"
	"github.com/scattermap/scattermap/emulator/internal/tasksemu"
)

// Usage counts the operations that Google would bill: see [billing.Usage].
type Usage = billing.Usage

// Options are the settings of an [Emulator]. The zero value has all defaults.
type Options struct {
	// ScatterOneIn is n: on average, one in n entities has the property __scatter__. By this
	// property, clients sample the keys of a kind. It is in [1, 65536]. Defaults to 128, as in
	// production. Google's classic emulator has 2.
	ScatterOneIn int

	// QueryBatchSize is the largest number of results in one answer to a query. For more results, a
	// client calls again. Defaults to 300.
	QueryBatchSize int

	// PessimisticConcurrency makes transactions lock what they read, so that other writers wait for
	// them. In production this is a setting of the database. By default concurrency is optimistic:
	// a transaction's commit conflicts if entities that it has read were changed.
	PessimisticConcurrency bool

	// Indexes is the content of an index.yaml. A query is then refused if it needs a composite
	// index that the file lacks, and the error says which index to add. By default (nil) no query
	// needs composite indexes.
	Indexes []byte

	// Retention is how far back reads with a read_time can go. Old versions stay in memory for that
	// time. Defaults to 1h, as in production without point-in-time recovery.
	Retention time.Duration

	// PointInTimeRecovery makes the Datastore act as a database with point-in-time recovery. Reads
	// can go back to any microsecond of the last hour, and before that to whole minutes. Retention
	// then defaults to seven days.
	PointInTimeRecovery bool

	// VersionMemory is the largest size of the old versions that each database keeps in memory, in
	// bytes. Deleted entities count as old versions. Above this size, the oldest versions are
	// dropped early, and reads of their time are refused. Versions that an open transaction may
	// read are kept. Defaults to 256 MiB. A negative value is no limit.
	VersionMemory int64

	// IndexMemory is the largest size of the indexes that each database keeps in memory, in bytes.
	// An index is built when a query first needs it. Above this size, indexes that queries have not
	// used for long are dropped. They are built again when a query needs them. Defaults to 1 GiB.
	IndexMemory int64

	// Seed determines the IDs that the Datastore allocates. The default 0 is a seed like any other.
	Seed uint64

	// DatastoreAddr is the address on which the Datastore listens for other processes, such as
	// "127.0.0.1:8081", or "127.0.0.1:0" for any free port. It serves gRPC and the REST API, in
	// JSON and protobuf. Scripts can wait for GET /, and empty it by POST /reset. By default only
	// clients of this process reach it.
	DatastoreAddr string

	// TasksAddr is the address on which Cloud Tasks listens, for gRPC and for its REST API in JSON.
	// By default only clients of this process reach it.
	TasksAddr string

	// KeysAddr is the address on which the emulator serves its public keys over HTTP, as Google
	// does. With these keys, receivers verify the OIDC tokens of deliveries. By default the keys
	// are not served.
	KeysAddr string

	// AllowedHosts are names of this machine that web pages may use in requests to the REST APIs,
	// such as "devbox.example". IP addresses, localhost and the hosts of DatastoreAddr and
	// TasksAddr are always allowed. Requests for other names are refused, because a page could have
	// made its own name stand for this machine (DNS rebinding). At an address that is not loopback,
	// only requests of browsers are checked. gRPC clients may use any name.
	AllowedHosts []string

	// Transport sends the HTTP requests that deliver tasks. With [HandlerTransport], the requests
	// stay in this process. Defaults to the network.
	Transport http.RoundTripper

	// UnlimitedRate allows queues with more than 500 dispatches a second, which is Cloud Tasks'
	// limit. Defaults to false.
	UnlimitedRate bool

	// ReuseQueueNames allows a new queue to have the name of a deleted queue. Production refuses
	// that for up to 72 hours. By default, the emulator refuses it, too.
	ReuseQueueNames bool

	// Faults make calls and deliveries fail, by rules. [faults.New] makes them, and each emulator
	// needs its own. Defaults to none.
	Faults *faults.Faults

	// Interceptor is called for each call of both services, except calls that Faults lose or abort.
	// It can delay a call, or make it fail before or after its effect. It can't read the entities
	// in the results of queries and lookups, because they are encoded already. Defaults to none.
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
		transport.MaxIdleConnsPerHost = 5000 // the largest number of deliveries that a queue can have under way
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

// An Emulator is a Datastore and a Cloud Tasks in this process. [Start] makes one.
type Emulator struct {
	datastore, tasks *service
	datastoreServer  *dsemu.Server
	tasksServer      *tasksemu.Server
	rest             []*restServer
	keys             *http.Server
	keysAddr         string
	meter            *meter.Meter
}

// Start starts an emulator. The caller must call [Emulator.Close]. If o is nil, all options have
// their defaults.
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
	var source inject.Source // nil without faults
	defer func() {
		if err != nil {
			e.Close()
		}
		if err != nil && source != nil {
			source.Detach()
		}
	}()
	interceptors := []grpc.UnaryServerInterceptor{e.meter.UnaryServerInterceptor()}
	if opts.Faults != nil {
		attaching := inject.Of(opts.Faults)
		if err := attaching.Attach(); err != nil {
			return nil, fmt.Errorf("emulator: Options.Faults: %w", err)
		}
		source = attaching
		// The meter comes first, so that it counts the calls that faults lose. Interceptor comes
		// after the faults.
		calls := &callFaults{source: source, aborted: make(map[transactionKey]bool)}
		interceptors = append(interceptors, calls.intercept)
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
	hosts := slices.Clip(opts.AllowedHosts)
	if err := e.serveREST(e.datastore, append(hosts, opts.DatastoreAddr), func(conn *grpc.ClientConn) http.Handler {
		return rest.Datastore(conn, e.datastoreServer.Reset)
	}); err != nil {
		return nil, fmt.Errorf("emulator: Datastore: %w", err)
	}
	tasksOptions := tasksemu.Options{Transport: opts.Transport, Unlimited: opts.UnlimitedRate,
		ReuseNames: opts.ReuseQueueNames}
	if source != nil {
		tasksOptions.Faults = source
	}
	e.tasksServer = tasksemu.NewServer(tasksOptions, e.meter)
	e.tasks, err = startService(opts.TasksAddr, interceptors, func(s *grpc.Server) { e.tasksServer.Register(s) })
	if err == nil {
		err = e.serveREST(e.tasks, append(hosts, opts.TasksAddr), func(conn *grpc.ClientConn) http.Handler {
			return rest.Tasks(conn)
		})
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

// A restServer serves the REST API of a service, on the port of its gRPC API.
type restServer struct {
	http *http.Server
	conn *grpc.ClientConn // the connection to the service
}

// serveREST serves the REST API of a service, if the service has a port. It refuses what a browser
// sends from another site: a page there could empty the service, or make it send tasks. The
// parameter hosts has names of this machine.
func (e *Emulator) serveREST(s *service, hosts []string, handler func(*grpc.ClientConn) http.Handler) error {
	if s.other == nil {
		return nil
	}
	conn, err := grpc.NewClient("passthrough:///memory", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(s.dial), grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return err
	}
	same := http.NewCrossOriginProtection()
	r := &restServer{conn: conn,
		http: &http.Server{Handler: rest.Hosts(same.Handler(handler(conn)), s.other.Addr(), hosts),
			ReadHeaderTimeout: 10 * time.Second}}
	e.rest = append(e.rest, r)
	go r.http.Serve(s.other)
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

// Close ends both services, and cuts off deliveries under way. It does not close the clients: close
// them first.
func (e *Emulator) Close() {
	if e.tasksServer != nil {
		e.tasksServer.Close()
	}
	if e.keys != nil {
		e.keys.Close()
	}
	for _, r := range e.rest {
		r.http.Close()
		_ = r.conn.Close()
	}
	for _, s := range []*service{e.tasks, e.datastore} {
		if s != nil {
			s.stop()
		}
	}
}

// Reset empties both services between two tests: all queues, tasks and used names of tasks, and
// then all databases with their transactions. It cuts off deliveries under way, and waits for their
// end. A handler that ignores its context keeps running. Clients stay connected, and
// [Emulator.Usage] is not reset.
func (e *Emulator) Reset() {
	e.tasksServer.Reset()
	e.datastoreServer.Reset()
}

// DatastoreClient returns a client of a project's default database, connected in memory.
// mapper.NewEngine accepts it. The caller must close it before the emulator.
func (e *Emulator) DatastoreClient(
	ctx context.Context, project string, opts ...option.ClientOption,
) (*datastore.Client, error) {
	all := append(e.datastore.clientOptions(), dial.Versions())
	return datastore.NewClient(ctx, project, append(all, opts...)...)
}

// TasksClient returns a client of Cloud Tasks, connected in memory. The caller must close it before
// the emulator.
func (e *Emulator) TasksClient(ctx context.Context, opts ...option.ClientOption) (*cloudtasks.Client, error) {
	return cloudtasks.NewClient(ctx, append(e.tasks.clientOptions(), opts...)...)
}

// DatastoreAddr returns the address on which the Datastore listens, for DATASTORE_EMULATOR_HOST. It
// is "" without [Options].DatastoreAddr.
func (e *Emulator) DatastoreAddr() string { return e.datastore.addr }

// TasksAddr returns the address on which Cloud Tasks listens, for CLOUD_TASKS_EMULATOR_HOST
// (tasks.NewClient). It is "" without [Options].TasksAddr.
func (e *Emulator) TasksAddr() string { return e.tasks.addr }

// KeysURL returns the URL of the public keys that verify the emulator's tokens, for tasks.Options.
// It is "" without [Options].KeysAddr.
func (e *Emulator) KeysURL() string {
	if e.keysAddr == "" {
		return ""
	}
	return "http://" + e.keysAddr + "/"
}

// Token returns an OIDC token for an account and an audience, like the tokens of deliveries. The
// keys at [Emulator.KeysURL] verify it.
func (e *Emulator) Token(account, audience string) (string, error) {
	return e.tasksServer.Token(account, audience)
}

// Usage returns the operations that Google would have billed since the emulator started. To measure
// a part of a program, subtract two readings with [Usage.Sub].
func (e *Emulator) Usage() Usage { return e.meter.Usage() }

// A service is a gRPC server. Clients in this process reach it in memory. If it has an address, it
// also listens on a port.
type service struct {
	server *grpc.Server
	memory *bufconn.Listener
	other  net.Listener // accepts the port's connections that are not gRPC
	addr   string
	serves sync.WaitGroup
}

// maxMessage is the largest gRPC message, in bytes. It is larger than the 10 MiB that Datastore
// accepts. So larger requests are refused by the service, with production's error.
const maxMessage = 16 << 20

func startService(addr string, interceptors []grpc.UnaryServerInterceptor, register func(*grpc.Server),
) (*service, error) {
	s := &service{
		server: grpc.NewServer(
			grpc.ChainUnaryInterceptor(interceptors...),
			withOrderedMaps(),
			grpc.MaxRecvMsgSize(maxMessage),
			// The Datastore client sends a ping every minute, even without a call.
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
				panic("emulator: " + err.Error()) // the listener failed
			}
		})
	}
	return s, nil
}

func (s *service) stop() {
	s.server.Stop()
	s.serves.Wait()
}

// dial returns a connection to the service in memory.
func (s *service) dial(ctx context.Context, _ string) (net.Conn, error) {
	return s.memory.DialContext(ctx)
}

// clientOptions returns the options of a client that is connected in memory. The client keeps its
// retries and limits of production.
func (s *service) clientOptions() []option.ClientOption {
	return append(dial.Insecure("passthrough:///memory"),
		option.WithGRPCDialOption(grpc.WithContextDialer(s.dial)),
		// gRPC closes a connection that was idle for half an hour. In gRPC 1.83, this has a data
		// race with the next call, which is likely in virtual time.
		option.WithGRPCDialOption(grpc.WithIdleTimeout(0)))
}
