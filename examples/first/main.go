// Command first is the smallest whole service: one mapper, the handler that Cloud Tasks calls, and
// one address that starts a job. The README shows its mapper. For a service that also serves
// operators, drains when it is told to end, and verifies every request, see examples/cloudrun.
//
// Environment:
//
//	GOOGLE_CLOUD_PROJECT   the project of the database
//	TASKS_QUEUE            projects/PROJECT/locations/LOCATION/queues/QUEUE
//	SERVICE_URL            where Cloud Tasks reaches this service
//	TASKS_SERVICE_ACCOUNT  the account whose token the tasks carry; an emulator needs none
//	PORT                   where to listen
//
// DATASTORE_EMULATOR_HOST and CLOUD_TASKS_EMULATOR_HOST, which "scattermap emulator" prints, point
// it at emulators. Then it writes one account, to try the job on.
package main

import (
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// An Account is an entity of the kind Account.
type Account struct{ Balance int64 }

// Credit has the parameters of a job.
type Credit struct{ Amount int64 }

// AddCredit adds an amount to the balance of each account, exactly once.
var AddCredit = mapper.Update("add-credit", func(_ context.Context, a *mapper.Entity[Account], p Credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1) // a counter of the job, exact as the balances are
	return nil
})

func startCredit(ctx context.Context, engine *mapper.Engine) (*mapper.Job, error) {
	return AddCredit.Start(ctx, engine, mapper.Query{Kind: "Account"}, Credit{Amount: 10},
		&mapper.StartOptions{ID: "spring-credit"}) // starting this ID again returns the same job
}

func main() {
	ctx := context.Background()
	service, port := env("SERVICE_URL"), env("PORT")
	queueName := env("TASKS_QUEUE")
	client, err := mapper.NewClient(ctx, env("GOOGLE_CLOUD_PROJECT"))
	check(err)
	if host := os.Getenv("DATASTORE_EMULATOR_HOST"); host != "" { // an account to try the job on
		limited, cancel := context.WithTimeout(ctx, 10*time.Second)
		_, err := client.Put(limited, datastore.NameKey("Account", "ann", nil), &Account{Balance: 5})
		cancel()
		if err != nil {
			log.Fatalf("no emulator answers at %s (scattermap emulator starts one): %v", host, err)
		}
	}
	taskClient, err := tasks.NewClient(ctx)
	check(err)
	queue, err := tasks.NewQueue(taskClient, queueName, service+"/mapper/", &tasks.Options{
		ServiceAccount:     os.Getenv("TASKS_SERVICE_ACCOUNT"),
		InsecureSkipVerify: os.Getenv("CLOUD_TASKS_EMULATOR_HOST") != "", // its tasks carry no tokens
	})
	check(err)
	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{AddCredit}})
	check(err)

	http.Handle("/mapper/", engine.Handler()) // Cloud Tasks calls it
	http.HandleFunc("POST /spring-credit", func(w http.ResponseWriter, r *http.Request) {
		job, err := startCredit(r.Context(), engine)
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		status, err := job.Status(r.Context())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		if err := json.NewEncoder(w).Encode(status); err != nil {
			log.Print(err)
		}
	})
	log.Print("serving at ", service)
	log.Fatal(http.ListenAndServe(":"+port, nil))
}

// env returns the value of an environment variable. It ends the process if the variable is not set.
func env(name string) string {
	value := os.Getenv(name)
	if value == "" {
		log.Fatalf("the environment variable %s is not set", name)
	}
	return value
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
