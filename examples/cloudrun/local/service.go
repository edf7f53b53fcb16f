package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/examples/internal/bank"
)

const (
	project  = "local"
	location = "projects/local/locations/local"
	queue    = location + "/queues/mapper"
	robot    = "tasks@local.iam.gserviceaccount.com"
	operator = "operator@local.iam.gserviceaccount.com"
	program  = "github.com/scattermap/scattermap/examples/cloudrun"
)

// A service is the deployed example: the program of examples/cloudrun, the router that sends
// requests to it, and the emulators that it uses.
type service struct {
	*router
	emulator *emulator.Emulator
	latency  *faults.Faults
	client   *datastore.Client
	url      string
	front    *httptest.Server
	folder   string // the folder of the program, and of the file with the calls of the function
	programs []string
	log      io.Writer
}

// start starts the emulators, and a router with the first revision. The router starts the first
// instance when a request comes.
func start(ctx context.Context, c config, say func(string, ...any), log io.Writer) (_ *service, err error) {
	s := &service{router: newRouter(c.limits), programs: c.programs, log: io.Discard}
	s.always, s.wait, s.timeout, s.cold, s.say = c.cpu == cpuAlways, c.wait, c.timeout, c.cold, say
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
	if len(s.programs) == 0 {
		binary := filepath.Join(s.folder, "cloudrun")
		if out, err := exec.CommandContext(ctx, "go", "build", "-o", binary, program).CombinedOutput(); err != nil {
			return nil, fmt.Errorf("build %s: %w\n%s", program, err, out)
		}
		s.programs = []string{binary}
	}
	var slow []faults.Rule
	if c.latency > 0 {
		slow = append(slow,
			faults.Rule{Kind: faults.SlowCall, Latency: faults.LogNormal{Median: c.latency, P99: 5 * c.latency}})
	}
	s.latency = faults.New(1, slow...)
	s.latency.Pause()
	if s.emulator, err = emulator.Start(&emulator.Options{
		DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0", KeysAddr: "127.0.0.1:0", Faults: s.latency,
	}); err != nil {
		return nil, err
	}
	if s.client, err = s.emulator.DatastoreClient(ctx, project); err != nil {
		return nil, err
	}
	if c.workers > 0 {
		if err := s.createQueue(ctx, c.workers); err != nil {
			return nil, err
		}
	}
	s.front = httptest.NewServer(s.router)
	s.url = s.front.URL
	s.deployNext()
	return s, nil
}

// createQueue creates a queue that delivers as many tasks at once as there are workers. Without it,
// the service would create a queue with other settings.
func (s *service) createQueue(ctx context.Context, workers int) error {
	client, err := s.emulator.TasksClient(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name:        queue,
		RateLimits:  &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(workers)},
		RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1, MaxBackoff: durationpb.New(time.Minute)},
	}})
	return err
}

// deployNext deploys another revision of the service. If the configuration has several programs,
// the revision runs the next one.
func (s *service) deployNext() {
	n := len(s.revisions)
	binary, name := s.programs[min(n, len(s.programs)-1)], fmt.Sprintf("credit-%05d", n+1)
	// Remove variables of the user's shell that are meant for another service.
	others := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "AUTH=") || strings.HasPrefix(v, "IAP_") || strings.HasPrefix(v, "OTEL_")
	})
	environment := append(others,
		"GOOGLE_CLOUD_PROJECT="+project, "TASKS_QUEUE="+queue, "CREATE_QUEUES=true", "SERVICE_URL="+s.url,
		fmt.Sprint("MAX_INSTANCES=", s.max), fmt.Sprint("CONCURRENCY=", s.concurrency),
		fmt.Sprint("REQUEST_TIMEOUT=", max(1, int(s.timeout.Seconds()))),
		"TASKS_SERVICE_ACCOUNT="+robot, "OPERATORS="+operator, "OIDC_KEYS_URL="+s.emulator.KeysURL(),
		"DATASTORE_EMULATOR_HOST="+s.emulator.DatastoreAddr(), "CLOUD_TASKS_EMULATOR_HOST="+s.emulator.TasksAddr(),
		"K_SERVICE=credit", "K_REVISION="+name, bank.CallsVariable+"="+s.callsFile())
	s.deploy(name, func() (machine, error) {
		p, err := launch(binary, environment, s.log, s.lost)
		if err != nil {
			return nil, err
		}
		return p, nil
	})
}

func (s *service) callsFile() string { return filepath.Join(s.folder, "calls") }

// called returns the number of calls of the function so far. It is the length of the file of calls
// divided by the length of a line, because all keys have the same length.
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

// calls returns the number of calls of the function, and the number of accounts for which it was
// called more than once.
func (s *service) calls() (calls, redone int64, err error) {
	file, err := os.Open(s.callsFile())
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = file.Close() }() // an error does not matter after reading
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

// attempts is how many times an operator sends a request if the router, and not the service, has
// answered it.
const attempts = 20

// call sends a request to the service's API as an operator, and decodes the answer into v unless v
// is nil. If the router has answered instead of the service, call repeats the request. That is
// safe, because the API's requests are idempotent.
func (s *service) call(ctx context.Context, method, path, body string, v any) error {
	for attempt := 1; ; attempt++ {
		code, text, err := s.send(ctx, method, path, body)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil && code == http.StatusOK && v != nil:
			return json.Unmarshal(text, v)
		case err == nil && code == http.StatusOK:
			return nil
		case err == nil && code < 500 && code != http.StatusTooManyRequests || attempt == attempts:
			return errors.Join(err, fmt.Errorf("%s %s: %d %s", method, path, code, text))
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(attempt) * 50 * time.Millisecond):
		}
	}
}

// send makes a request to the API as an operator. It returns the status code and the body of the
// answer.
func (s *service) send(ctx context.Context, method, path, body string) (code int, text []byte, err error) {
	token, err := s.emulator.Token(operator, s.url)
	if err != nil {
		return 0, nil, err
	}
	r, err := http.NewRequestWithContext(ctx, method, s.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, nil, err
	}
	defer answer.Body.Close()
	text, err = io.ReadAll(answer.Body)
	return answer.StatusCode, text, err
}

// close ends the service and the emulators.
func (s *service) close() {
	s.router.close()
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
