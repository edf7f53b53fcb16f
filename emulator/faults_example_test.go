package emulator_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// ExampleFaults loses the answer to the first CreateTask. The task exists nevertheless, so a second
// create with its name is refused.
func ExampleFaults() {
	ctx := context.Background()
	faults := emulator.NewFaults(1, emulator.Fault{Kind: emulator.LoseAnswer, Methods: []string{"CreateTask"},
		Limit: 1})
	e, err := emulator.Start(&emulator.Options{Faults: faults,
		Transport: emulator.HandlerTransport(http.NotFoundHandler())})
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	client, err := e.TasksClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if _, err := client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queueName}}); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		fmt.Println(status.Code(create(ctx, client, task("same"))))
	}
	fmt.Println(faults.Counts())
	// Output:
	// Unavailable
	// AlreadyExists
	// map[LoseAnswer:1]
}
