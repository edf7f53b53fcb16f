package mapper_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

type Account struct{ Balance int64 }

type Credit struct{ Amount int64 }

var AddCredit = mapper.Update("add-credit", func(ctx context.Context, a *mapper.Entity[Account], p Credit) error {
	a.Value.Balance += p.Amount
	a.Count("credited", 1)
	return nil
})

func Example() {
	ctx := context.Background()
	client, queue, stop := cloud(ctx) // a *datastore.Client and a *tasks.Queue
	defer stop()

	m, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{AddCredit}})
	if err != nil {
		log.Fatal(err)
	}
	http.Handle("/mapper/", m.Handler()) // what Cloud Tasks calls

	job, err := AddCredit.Start(ctx, m, mapper.Query{Kind: "Account"}, Credit{Amount: 10},
		&mapper.StartOptions{ID: "spring-credit"})
	if err != nil {
		log.Fatal(err)
	}
	status, err := job.Wait(ctx)
	if err == nil {
		err = status.Err() // the job's result; Wait's own error is only about waiting
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status.State, status.Processed, status.Counters["credited"])
	// Output: succeeded 3 3
}

// cloud returns what a service gets from its environment. Here it is the embedded emulators, with
// three accounts.
func cloud(ctx context.Context) (*datastore.Client, *tasks.Queue, func()) {
	e, err := emulator.Start(nil)
	if err != nil {
		log.Fatal(err)
	}
	client, err := e.DatastoreClient(ctx, "example")
	if err != nil {
		log.Fatal(err)
	}
	for _, name := range []string{"ann", "bob", "cid"} {
		if _, err := client.Put(ctx, datastore.NameKey("Account", name, nil), &Account{Balance: 5}); err != nil {
			log.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	const location = "projects/example/locations/local"
	if _, err := taskClient.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{
		Parent: location, Queue: &cloudtaskspb.Queue{Name: location + "/queues/mapper"},
	}); err != nil {
		log.Fatal(err)
	}
	server := httptest.NewServer(http.DefaultServeMux)
	queue, err := tasks.NewQueue(taskClient, location+"/queues/mapper", server.URL+"/mapper/",
		&tasks.Options{InsecureSkipVerify: true}) // an emulator's tasks may come without a token
	if err != nil {
		log.Fatal(err)
	}
	return client, queue, func() {
		server.Close()
		taskClient.Close()
		client.Close()
		e.Close()
	}
}

func ExampleVisit() {
	// A visit has effects elsewhere, which may be repeated. The key identifies repetitions.
	send := func(_ context.Context, idempotencyKey, to string) error { return nil }

	type user struct{ Email string }
	greet := mapper.Visit("greet", func(ctx context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if u.Value.Email == "" {
			u.Count("without address", 1)
			return nil
		}
		return send(ctx, u.IdempotencyKey(), u.Value.Email)
	})
	fmt.Println(greet.Name())
	// Output: greet
}

func ExamplePermanent() {
	type order struct{ Total int64 }
	check := mapper.Update("check-totals", func(_ context.Context, o *mapper.Entity[order], _ mapper.NoParams) error {
		if o.Value.Total < 0 {
			// Another attempt would find the same: the entity is listed as a failure at
			// once, and the others go on.
			return mapper.Permanent(fmt.Errorf("the total is %d", o.Value.Total))
		}
		return nil
	})
	fmt.Println(check.Name())
	// Output: check-totals
}

func ExampleMapper_Plan() {
	ctx := context.Background()
	client, queue, stop := cloud(ctx)
	defer stop()
	m, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{AddCredit}})
	if err != nil {
		log.Fatal(err)
	}
	plan, err := AddCredit.Plan(ctx, m, mapper.Query{Kind: "Account"}, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(plan.Entities, "entities on", plan.Tasks, "task; the plan took", plan.Spent.Reads, "read")
	// Output: 3 entities on 1 task; the plan took 1 read
}

func ExampleRate() {
	options := mapper.StartOptions{
		ID: "spring-credit",
		// At most 2,000 entities a second; Job.SetRate changes that while it runs.
		Rate: mapper.Rate{EntitiesPerSecond: 2000},
	}
	fmt.Println(options.Rate.EntitiesPerSecond)
	// Output: 2000
}

type Place struct{ Name, Position string }

// ExampleEntity_AwaitCall calls a service that allows 50 calls a second. The function announces
// each call, and the job's rate limits them, in all processes together.
func ExampleEntity_AwaitCall() {
	geocode := func(context.Context, string) (string, error) { return "48.2,16.4", nil } // the service
	locate := mapper.Update("locate", func(ctx context.Context, a *mapper.Entity[Place], _ mapper.NoParams) error {
		if a.Value.Position != "" {
			return mapper.Skip // needs no call
		}
		if err := a.AwaitCall(ctx); err != nil {
			return err
		}
		position, err := geocode(ctx, a.Value.Name)
		a.Value.Position = position
		return err
	})
	options := mapper.StartOptions{Rate: mapper.Rate{CallsPerSecond: 50}}
	fmt.Println(locate.Name(), "makes at most", options.Rate.CallsPerSecond, "calls a second")
	// Output: locate makes at most 50 calls a second
}
