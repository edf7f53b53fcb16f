package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/schollz/progressbar/v3"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
)

const (
	project  = "local"
	queue    = "projects/local/locations/local/queues/mapper"
	robot    = "tasks@local.iam.gserviceaccount.com"
	operator = "operator@local.iam.gserviceaccount.com"
	program  = "github.com/scattermap/scattermap/examples/cloudrun"
)

// A service is some processes of the command examples/cloudrun behind a balancer, and what they need.
type service struct {
	emulator *emulator.Emulator
	client   *datastore.Client
	url      string
	front    *httptest.Server
	folder   string // of the program, and of the file of calls
	log      io.Writer

	environment []string
	turn        atomic.Int64

	mu        sync.Mutex
	processes []*process // that get requests
	problems  []error    // of processes that ended otherwise than they should
	all       sync.WaitGroup
}

// A process is one of the service's.
type process struct {
	*exec.Cmd
	url    *url.URL
	doomed syscall.Signal // that it was ended by; 0: none
	ended  chan struct{}
}

// start starts the emulators, and then the service.
func start(ctx context.Context, c config, log io.Writer) (_ *service, err error) {
	s := &service{log: io.Discard}
	if c.log {
		s.log = log
	}
	defer func() {
		if err != nil {
			s.close()
		}
	}()
	if s.folder, err = os.MkdirTemp("", "scattermap-local-"); err != nil {
		return nil, err
	}
	if err := os.WriteFile(s.callsFile(), nil, 0o600); err != nil {
		return nil, err
	}
	binary := c.program
	if binary == "" {
		binary = filepath.Join(s.folder, "cloudrun")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, program).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
	}
	if s.emulator, err = emulator.Start(&emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0", KeysAddr: "127.0.0.1:0"}); err != nil {
		return nil, err
	}
	if s.client, err = s.emulator.Datastore(ctx, project); err != nil {
		return nil, err
	}
	s.front = httptest.NewServer(&httputil.ReverseProxy{
		Rewrite:      func(r *httputil.ProxyRequest) { r.SetURL(s.next()) },
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, _ error) { w.WriteHeader(http.StatusBadGateway) },
	})
	s.url = s.front.URL
	s.environment = append(os.Environ(),
		"GOOGLE_CLOUD_PROJECT="+project, "TASKS_QUEUE="+queue, "CREATE_QUEUES=true", "SERVICE_URL="+s.url,
		"MAX_INSTANCES=1", fmt.Sprint("CONCURRENCY=", c.workers),
		"TASKS_SERVICE_ACCOUNT="+robot, "OPERATORS="+operator, "OIDC_KEYS_URL="+s.emulator.KeysURL(),
		"DATASTORE_EMULATOR_HOST="+s.emulator.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST="+s.emulator.TasksAddr(),
		bank.CallsVariable+"="+s.callsFile())
	for range c.processes {
		if err := s.add(ctx, binary); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *service) callsFile() string { return filepath.Join(s.folder, "calls") }

// next returns the address of the process whose turn it is.
func (s *service) next() *url.URL {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.processes) == 0 {
		return &url.URL{Scheme: "http", Host: "127.0.0.1:1"} // nothing listens there
	}
	return s.processes[int(s.turn.Add(1))%len(s.processes)].url
}

// add starts a process, and lets it have requests once it is ready.
func (s *service) add(ctx context.Context, binary string) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free now
	if err != nil {
		return err
	}
	_, port, _ := net.SplitHostPort(listener.Addr().String())
	listener.Close()
	p := &process{Cmd: exec.Command(binary), url: &url.URL{Scheme: "http", Host: "127.0.0.1:" + port}, ended: make(chan struct{})}
	p.Env = append(s.environment[:len(s.environment):len(s.environment)], "PORT="+port)
	p.Stderr = s.log
	if err := p.Start(); err != nil {
		return err
	}
	s.all.Go(func() {
		err := p.Wait()
		s.mu.Lock()
		defer s.mu.Unlock()
		if p.doomed != syscall.SIGKILL && err != nil {
			s.problems = append(s.problems, fmt.Errorf("process %d of the service: %w (-log shows its log)", p.Process.Pid, err))
		}
		close(p.ended)
	})
	for {
		answer, err := http.Get(p.url.JoinPath("ready").String())
		if err == nil {
			answer.Body.Close()
			if answer.StatusCode == http.StatusOK {
				break
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-p.ended:
			return errors.Join(s.drained(), errors.New("a process of the service has ended before it was ready"))
		case <-time.After(10 * time.Millisecond):
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.processes = append(s.processes, p)
	return nil
}

// end ends the process that has run longest. As on Cloud Run, one that is told to end gets no new requests.
func (s *service) end(by syscall.Signal) (*process, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.processes[0]
	p.doomed = by
	if by != syscall.SIGKILL {
		s.processes = s.processes[1:]
	}
	return p, p.Process.Signal(by)
}

// endSome ends as many processes as it is to, each when another part of the accounts has been credited, and starts others
// in their places.
func (s *service) endSome(ctx context.Context, c config, say func(string, ...any)) error {
	for i := range c.term + c.kill {
		by := syscall.SIGTERM
		if i >= c.term {
			by = syscall.SIGKILL
		}
		for part := c.entities * (i + 1) / (c.term + c.kill + 1); ; time.Sleep(time.Millisecond) {
			if ctx.Err() != nil {
				return fmt.Errorf("the job ended before process %d of %d did: it needs more -entities", i+1, c.term+c.kill)
			}
			if s.called() >= part {
				break
			}
		}
		p, err := s.end(by)
		if err != nil {
			return err
		}
		say("Process %d was ended by %s.", p.Process.Pid, map[syscall.Signal]string{syscall.SIGTERM: "SIGTERM", syscall.SIGKILL: "SIGKILL"}[by])
		<-p.ended
		s.remove(p)
		if err := s.add(context.WithoutCancel(ctx), p.Path); err != nil {
			return err
		}
	}
	return nil
}

// remove has a process get no requests.
func (s *service) remove(p *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.processes {
		if s.processes[i] == p {
			s.processes = append(s.processes[:i:i], s.processes[i+1:]...)
			return
		}
	}
}

// drained returns what went wrong with processes that should have ended in good order.
func (s *service) drained() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return errors.Join(s.problems...)
}

// called returns how often the function was called so far: by the length of the file,
// as all keys are equally long.
func (s *service) called() int {
	info, err := os.Stat(s.callsFile())
	if err != nil {
		return 0
	}
	return int(info.Size()) / (len(accountKey(0).Encode()) + 1)
}

// accountKey returns the key of account i.
func accountKey(i int) *datastore.Key {
	return datastore.NameKey("Account", fmt.Sprintf("user-%08d", i), nil)
}

// calls returns how often the function was called, and for how many accounts more than once.
func (s *service) calls() (calls, redone int64, err error) {
	file, err := os.Open(s.callsFile())
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = file.Close() }() // it was only read
	times := make(map[string]int)
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		calls++
		if times[lines.Text()]++; times[lines.Text()] == 2 {
			redone++
		}
	}
	return calls, redone, lines.Err()
}

// call makes a request to the API, as an operator, and decodes the answer into v, unless that is nil.
func (s *service) call(ctx context.Context, method, path, body string, v any) error {
	token, err := s.emulator.Token(operator, s.url)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK {
		return errors.Join(err, fmt.Errorf("%s %s: %s: %s", method, path, answer.Status, text))
	}
	if v == nil {
		return nil
	}
	return json.Unmarshal(text, v)
}

// follow shows a bar until the job has ended.
func (s *service) follow(ctx context.Context, total int64, w io.Writer) (*mapper.Status, error) {
	bar := progressbar.NewOptions64(total, progressbar.OptionSetWriter(w), progressbar.OptionSetDescription("crediting"),
		progressbar.OptionSetItsString("accounts"), progressbar.OptionShowCount(), progressbar.OptionShowIts(), progressbar.OptionSetWidth(30))
	defer fmt.Fprintln(w)
	for failed := 0; ; time.Sleep(100 * time.Millisecond) {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		job := new(mapper.Status)
		if err := s.call(ctx, "GET", "/jobs/spring-credit", "", job); err != nil {
			if failed++; failed == 50 { // a process that was killed answers nothing
				return nil, err
			}
			continue
		}
		failed = 0
		_ = bar.Set64(min(job.Processed, total)) // a live status is an estimate
		if job.State.Ended() {
			return job, nil
		}
	}
}

// close ends all of it.
func (s *service) close() {
	s.mu.Lock()
	for _, p := range s.processes {
		p.doomed = syscall.SIGKILL
		_ = p.Process.Kill() // it may have ended
	}
	s.mu.Unlock()
	s.all.Wait()
	if s.front != nil {
		s.front.Close()
	}
	if s.client != nil {
		s.client.Close()
	}
	if s.emulator != nil {
		s.emulator.Close()
	}
	if s.folder != "" {
		_ = os.RemoveAll(s.folder)
	}
}
