package faults_test

import (
	"context"
	"fmt"
	"log"
	"net/http"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
)

// Example loses the answer to the first CreateTask. The task exists nevertheless, so a second
// create with its name is refused.
func Example() {
	ctx := context.Background()
	lost := faults.New(1, faults.Rule{Kind: faults.LoseAnswer, Methods: []string{"CreateTask"}, Limit: 1})
	e, err := emulator.Start(&emulator.Options{Faults: lost,
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
	const location = "projects/my-project/locations/europe-west1"
	const queue = location + "/queues/jobs"
	if _, err := client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: queue}}); err != nil {
		log.Fatal(err)
	}
	for range 2 {
		_, err := client.CreateTask(ctx, &cloudtaskspb.CreateTaskRequest{Parent: queue, Task: &cloudtaskspb.Task{
			Name: queue + "/tasks/same",
			MessageType: &cloudtaskspb.Task_HttpRequest{
				HttpRequest: &cloudtaskspb.HttpRequest{Url: "http://worker/"},
			},
		}})
		fmt.Println(status.Code(err))
	}
	fmt.Println(lost.Counts())
	// Output:
	// Unavailable
	// AlreadyExists
	// map[LoseAnswer:1]
}
