// Command service is a small service for Cloud Run, which checks the token of each request. It has
// one mapper, the jobs API and the dashboard. Copy it, and replace the mapper by your own:
// docs/deploy.md deploys a copy.
//
// Environment:
//
//	GOOGLE_CLOUD_PROJECT   the project of the database
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE
//	TASKS_SERVICE_ACCOUNT  the account whose tokens the tasks carry
//	SERVICE_URL            the URL at which Cloud Tasks reaches this service
//	PORT                   the port to listen on
//
// To run it on your machine beside "scattermap emulator", replace auth.Claimed by auth.Loopback,
// and set TASKS_SERVICE_ACCOUNT to any e-mail address.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/cloudlog"
	"github.com/scattermap/scattermap/dashboard"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// An Account is an entity of the kind Account.
type Account struct{ Balance int64 }

// Credit has the parameters of a job.
type Credit struct{ Amount int64 }

// AddCredit adds an amount to the balance of each account.
var AddCredit = mapper.Update("add-credit", func(ctx context.Context, a *mapper.Entity[Account], p Credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	project, url, port := env("GOOGLE_CLOUD_PROJECT"), env("SERVICE_URL"), env("PORT")
	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: project}))
	slog.SetDefault(log)

	client, err := mapper.NewClient(ctx, project)
	check(err)
	taskClient, err := tasks.NewClient(ctx)
	check(err)
	queue, err := tasks.NewQueue(taskClient, env("TASKS_QUEUE"), url+"/mapper/", &tasks.Options{
		ServiceAccount:     env("TASKS_SERVICE_ACCOUNT"), // the account whose tokens the tasks carry
		Audience:           url,
		InsecureSkipVerify: true, // Cloud Run has verified the token
	})
	check(err)
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{
		Mappers: []mapper.AnyMapper{AddCredit},
		Logger:  log,
	})
	check(err)
	jobs, err := jobsapi.NewHandler(engine, &jobsapi.Options{Allow: auth.Claimed, Logger: log})
	check(err)

	http.Handle("/mapper/", engine.Handler()) // Cloud Tasks and Cloud Scheduler call it
	http.Handle("/jobs", jobs)
	http.Handle("/jobs/", jobs)
	http.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {}) // answers as long as the process runs
	http.HandleFunc("GET /ready", func(w http.ResponseWriter, r *http.Request) {
		if err := engine.CheckReady(r.Context()); err != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
		}
	})
	http.Handle("/dashboard/", dashboard.NewHandler(engine, &dashboard.Options{Allow: auth.Claimed, Logger: log}))
	server := &http.Server{Addr: ":" + port, ReadHeaderTimeout: 10 * time.Second}
	go func() {
		if err := server.ListenAndServe(); err != http.ErrServerClosed {
			check(err)
		}
	}()

	<-ctx.Done() // Cloud Run ends the process 10 s after this
	limited, cancel := context.WithTimeout(context.Background(), 8*time.Second)
	defer cancel()
	check(engine.Drain(limited))
	check(server.Shutdown(limited))
}

// env returns the value of an environment variable. It ends the process if the variable is not set.
func env(name string) string {
	value := os.Getenv(name)
	if value == "" {
		check(fmt.Errorf("the environment variable %s is not set", name))
	}
	return value
}

// check logs an error and ends the process.
func check(err error) {
	if err != nil {
		slog.Error("the service has ended", "error", err)
		os.Exit(1)
	}
}
