package main

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// datastores are the places where the accounts can be: the embedded Datastore,
// Google's classic emulator in Firestore mode, and Google's Firestore emulator
// in Datastore mode.
var datastores = []string{"embedded", "google", "firestore"}

const (
	project   = "scattermap-credit"
	location  = "projects/" + project + "/locations/local"
	queueName = location + "/queues/credit"
)

// A cloud is what the job runs on, all of it on this machine.
type cloud struct {
	client *datastore.Client
	engine *mapper.Engine

	embedded *emulator.Emulator
	usage    func() emulator.Usage // of the Datastore that has the accounts
	closers  []func()
}

// taskOps is how many task operations Google would have billed.
func (c *cloud) taskOps() int64 { return c.embedded.Usage().TaskOps }

func (c *cloud) close() {
	for _, f := range slices.Backward(c.closers) {
		f()
	}
}

// startCloud starts a Datastore, a queue, and a server that handles the queue's
// tasks.
func startCloud(ctx context.Context, cfg config) (_ *cloud, err error) {
	c := new(cloud)
	defer func() {
		if err != nil {
			c.close()
		}
	}()
	if c.embedded, err = emulator.Start(nil); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, c.embedded.Close)
	if err := c.openDatastore(ctx, cfg.datastore); err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { c.client.Close() })

	taskClient, err := c.embedded.CloudTasks(ctx)
	if err != nil {
		return nil, err
	}
	c.closers = append(c.closers, func() { taskClient.Close() })
	if _, err := taskClient.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location, Queue: &cloudtaskspb.Queue{
		Name: queueName, RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: int32(cfg.workers)},
	}}); err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	queue, err := tasks.NewQueue(taskClient, queueName, "http://"+listener.Addr().String()+"/mapper/", &tasks.Options{Unverified: true})
	if err != nil {
		return nil, err
	}
	if c.engine, err = mapper.New(c.client, queue, &mapper.Options{Mappers: mapper.Set(bank.AddCredit)}); err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("/mapper/", c.engine.Handler())
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	c.closers = append(c.closers, func() { server.Close() })
	return c, nil
}

// openDatastore opens the Datastore of a name.
func (c *cloud) openDatastore(ctx context.Context, name string) (err error) {
	product := map[string]emulator.Product{"google": emulator.Classic, "firestore": emulator.Firestore}[name]
	if product == "" {
		c.usage = c.embedded.Usage
		c.client, err = c.embedded.Datastore(ctx, project)
		return err
	}
	google, err := emulator.StartGoogle(ctx, product)
	if err != nil {
		return fmt.Errorf("-datastore %s: %w", name, err)
	}
	c.closers = append(c.closers, google.Close)
	c.usage = google.Usage
	c.client, err = google.Datastore(ctx, project)
	return err
}
