package tasksemu

import (
	"context"
	"net/http"
	"sync"
	"time"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/grpc"

	"github.com/scattermap/scattermap/emulator/internal/inject"
	"github.com/scattermap/scattermap/emulator/internal/meter"
	"github.com/scattermap/scattermap/emulator/internal/oidc"
)

// Options are the settings of a server.
type Options struct {
	// Transport carries the deliveries' HTTP requests.
	Transport http.RoundTripper
	// Unlimited allows queues that dispatch more than 500 tasks a second.
	Unlimited bool
	// ReuseNames allows creating a queue with the name of a deleted one.
	ReuseNames bool
	// Faults decides which faults happen to deliveries. If it is nil, none happen.
	Faults inject.Deliveries
}

// A Server serves google.cloud.tasks.v2.
type Server struct {
	pb.UnimplementedCloudTasksServer

	opts   Options
	meter  *meter.Meter
	client *http.Client
	signer *oidc.Signer

	mu         sync.Mutex
	era        *era
	queues     map[string]*queue
	deleted    map[string]time.Time // when queues were deleted, by the names of the queues
	operations operations
}

// An era is the time from one reset of the server to the next. It has the dispatchers and
// deliveries that a reset must end.
type era struct {
	ctx     context.Context // cancelled when the era's dispatchers and deliveries have to end
	end     context.CancelFunc
	working sync.WaitGroup
}

func newEra() *era {
	e := new(era)
	e.ctx, e.end = context.WithCancel(context.Background())
	return e
}

// NewServer returns a server without queues. It counts its operations in m. The caller must close
// it.
func NewServer(opts Options, m *meter.Meter) *Server {
	s := &Server{
		opts:   opts,
		meter:  m,
		client: &http.Client{Transport: opts.Transport},
		signer: new(oidc.Signer),
		era:    newEra(),
	}
	s.empty()
	return s
}

// Register registers the server's services.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	pb.RegisterCloudTasksServer(r, s)
	longrunningpb.RegisterOperationsServer(r, operationsServer{server: s})
}

// empty removes all queues. The caller has locked the server, or it is new.
func (s *Server) empty() {
	s.queues = make(map[string]*queue)
	s.deleted = make(map[string]time.Time)
	s.operations = newOperations()
}

// Close ends all dispatchers and deliveries, and waits for them.
func (s *Server) Close() {
	s.mu.Lock() // the lock makes sure that no goroutine is added to the era while Close waits
	ended := s.era
	ended.end()
	s.mu.Unlock()
	ended.working.Wait()
	s.client.CloseIdleConnections()
}

// Reset drops all queues, tasks, names and operations. It ends the deliveries under way, and waits
// for their goroutines.
func (s *Server) Reset() {
	s.mu.Lock()
	ended := s.era
	if ended.ctx.Err() == nil { // the server is not closed
		s.era = newEra()
	}
	ended.end()
	s.empty()
	s.mu.Unlock()
	ended.working.Wait()
}

// Keys returns a handler that serves the public keys. With these, receivers verify the OIDC tokens
// of deliveries.
func (s *Server) Keys() http.Handler { return s.signer }

// Token returns an OIDC token of a service account for an audience, like the tokens that deliveries
// carry.
func (s *Server) Token(account, audience string) (string, error) {
	return s.signer.Sign(account, audience, time.Now())
}

// queue returns the queue with a name, or an error if it does not exist.
func (s *Server) queue(name string) (*queue, error) {
	if err := checkQueueName(name); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if q := s.queues[name]; q != nil {
		return q, nil
	}
	return nil, errNoQueue
}

// queueTombstone is how long no new queue can have the name of a deleted queue, unless
// [Options.ReuseNames] is set. The documentation says "up to 3 days". A reset frees the names at
// once.
const queueTombstone = 3 * 24 * time.Hour

// buried reports whether a queue with this name was deleted too recently for a new one. The caller
// has locked the server.
func (s *Server) buried(name string, now time.Time) bool {
	at, deleted := s.deleted[name]
	if deleted && (s.opts.ReuseNames || now.Sub(at) >= queueTombstone) {
		delete(s.deleted, name)
		return false
	}
	return deleted
}
