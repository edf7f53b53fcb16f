package tasks

import (
	"context"
	"fmt"
	"os"

	cloudtasks "cloud.google.com/go/cloudtasks/apiv2"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const emulatorHost = "CLOUD_TASKS_EMULATOR_HOST"

// NewClient returns a client of Cloud Tasks. If the environment variable CLOUD_TASKS_EMULATOR_HOST
// is set, such as to "127.0.0.1:8123", the client calls the emulator at that address. Google's Go
// client has such a variable for Datastore (DATASTORE_EMULATOR_HOST), but none for Cloud Tasks.
func NewClient(ctx context.Context, opts ...option.ClientOption) (*cloudtasks.Client, error) {
	if host := os.Getenv(emulatorHost); host != "" {
		opts = append([]option.ClientOption{
			option.WithEndpoint("passthrough:///" + host),
			option.WithoutAuthentication(),
			option.WithGRPCDialOption(grpc.WithTransportCredentials(insecure.NewCredentials())),
		}, opts...)
	}
	client, err := cloudtasks.NewClient(ctx, opts...)
	if err != nil {
		return nil, fmt.Errorf("tasks: no client of Cloud Tasks: %w (to call an emulator, set %s)", err, emulatorHost)
	}
	return client, nil
}
