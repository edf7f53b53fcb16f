// Command trip counts the functions, files and packages that run when a worker handles one delivery
// of a task. It shows how much code a reader of the hot path has to know.
//
// It measures test coverage while an Update changes 20,000 entities with four workers, one task at
// a time. It counts the fourth delivery.
//
//	go run ./internal/trip
package main

import (
	"bufio"
	"bytes"
	"context"
	"flag"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/coverage"
	"sort"
	"strings"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

var (
	measures = flag.String("measure", "",
		"a folder: run the job, and write there what was covered; set by the command itself")
	fourth = flag.Int("delivery", 4, "which delivery")
	list   = flag.Bool("list", false, "print the functions")
)

func main() {
	flag.Parse()
	err := report()
	if *measures != "" {
		err = measure(*measures)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// report builds this command with test coverage and lets it run the job. Then it prints how many
// functions, files and packages one delivery of a task has used.
func report() error {
	if *measures != "" {
		return nil
	}
	dir, err := os.MkdirTemp("", "trip")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "trip")
	for _, command := range [][]string{
		{"go", "build", "-cover", "-covermode=atomic",
			"-coverpkg=" + module + "/mapper/...," + module + "/tasks," + module + "/internal/trip", "-o", program,
			"./internal/trip"},
		{program, "-measure", dir, "-delivery", fmt.Sprint(*fourth)},
	} {
		run := exec.Command(command[0], command[1:]...)
		run.Stderr, run.Env = os.Stderr, append(os.Environ(), "GOCOVERDIR="+dir)
		if err := run.Run(); err != nil {
			return fmt.Errorf("%v: %w", command, err)
		}
	}
	covered := filepath.Join(dir, "one")
	out, err := exec.Command("go", "tool", "covdata", "func", "-i="+covered).Output()
	if err != nil {
		return fmt.Errorf("go tool covdata: %w", err)
	}
	functions, files, packages := 0, make(map[string]bool), make(map[string]int)
	var all []string
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) != 3 || fields[2] == "0.0%" || !strings.Contains(fields[0], ":") ||
			strings.Contains(fields[0], "/internal/trip/") {
			continue
		}
		file, _, _ := strings.Cut(fields[0], ":")
		functions++
		files[file] = true
		packages[filepath.Dir(file)]++
		all = append(all, fields[0]+" "+fields[1])
	}
	if *list {
		sort.Strings(all)
		fmt.Println(strings.Join(all, "\n"))
	}
	fmt.Printf("%d functions in %d files of %d packages\n", functions, len(files), len(packages))
	return nil
}

const module = "github.com/scattermap/scattermap"

type account struct{ Balance int64 }

var addCredit = mapper.Update("add-credit",
	func(_ context.Context, a *mapper.Entity[account], _ mapper.NoParams) error {
		a.Value.Balance += 10
		return nil
	})

func measure(dir string) error {
	ctx := context.Background()
	e, err := emulator.Start(&emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	if err != nil {
		return err
	}
	defer e.Close()
	client, err := e.DatastoreClient(ctx, "trip", mapper.ClientOption())
	if err != nil {
		return err
	}
	defer client.Close()
	queues, err := e.TasksClient(ctx)
	if err != nil {
		return err
	}
	defer queues.Close()
	const n = 20_000
	for i := 0; i < n; i += 500 {
		keys := make([]*datastore.Key, 500)
		for j := range keys {
			keys[j] = datastore.IDKey("Account", int64(i+j+1), nil)
		}
		if _, err := client.PutMulti(ctx, keys, make([]account, len(keys))); err != nil {
			return err
		}
	}
	const location = "projects/trip/locations/here"
	name := location + "/queues/mapper"
	if _, err := queues.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name: name, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1},
	}}); err != nil {
		return err
	}
	var handler http.Handler
	deliveries := 0
	one := filepath.Join(dir, "one")
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !strings.HasSuffix(r.URL.Path, "/range") {
			handler.ServeHTTP(w, r)
			return
		}
		if deliveries++; deliveries != *fourth {
			handler.ServeHTTP(w, r)
			return
		}
		time.Sleep(time.Second) // wait until deliveries under way have ended
		if err := coverage.ClearCounters(); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		handler.ServeHTTP(w, r)
		if err := os.Mkdir(one, 0o700); err == nil {
			if err := coverage.WriteMetaDir(one); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			if err := coverage.WriteCountersDir(one); err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
	}))
	defer server.Close()
	queue, err := tasks.NewQueue(queues, name, server.URL+"/", &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		return err
	}
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return err
	}
	handler = engine.Handler()
	job, err := addCredit.Start(ctx, engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
		&mapper.StartOptions{ExpectedWorkers: 4})
	if err != nil {
		return err
	}
	status, err := job.Wait(ctx)
	if err == nil && status.State != mapper.StateSucceeded {
		err = fmt.Errorf("the job is %s: %s", status.State, status.Error)
	}
	return err
}
