package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/scattermap/scattermap/emulator"
)

// firstQueue is the queue that the emulator creates when it starts, unless flags name others. So
// users can try a program without creating a queue.
const firstQueue = "projects/local/locations/local/queues/mapper"

// newEmulator returns the command that runs the emulator of Datastore and Cloud Tasks.
func newEmulator() *cobra.Command {
	var o emulator.Options
	var indexes, pages string
	var queues []string
	var versions, indexed int64
	var keepNames bool
	c := &cobra.Command{
		Use: "emulator", Short: "Serve Datastore and Cloud Tasks on this machine", GroupID: databaseGroup,
		Args: nothing,
		Long: `Serves Datastore and Cloud Tasks in memory until you interrupt it. It prints the environment
variables that clients need.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := complete(&o, indexes, keepNames); err != nil {
				return err
			}
			if err := bound(&o, versions, indexed); err != nil {
				return err
			}
			return serve(c.Context(), &o, named(queues), pages, c.OutOrStdout(), c.ErrOrStderr())
		},
	}
	flags := c.Flags()
	flags.StringVar(&o.DatastoreAddr, "datastore", "127.0.0.1:8081",
		"the `HOST:PORT` of Datastore; port 0 chooses a free port")
	flags.StringVar(&o.TasksAddr, "tasks", "127.0.0.1:8123",
		"the `HOST:PORT` of Cloud Tasks; port 0 chooses a free port")
	flags.StringVar(&o.KeysAddr, "keys", "127.0.0.1:0",
		"the `HOST:PORT` that serves the public keys of the tasks' OIDC tokens")
	flags.StringArrayVar(&o.AllowedHosts, "allow-host", nil,
		"let web pages use this `name` of the machine in requests; repeatable")
	flags.IntVar(&o.ScatterOneIn, "scatter", 128,
		"one entity in `N` has the property __scatter__, in production one in 128")
	flags.BoolVar(&o.PessimisticConcurrency, "pessimistic", false,
		"make transactions lock what they read, instead of conflicting at commit")
	flags.BoolVar(&keepNames, "keep-queue-names", false,
		"like production, refuse the name of a queue that was deleted less than 72 hours ago")
	flags.StringVar(&indexes, "indexes", "", "refuse queries that need a composite index which this `index.yaml` lacks")
	flags.StringArrayVar(&queues, "queue", []string{firstQueue}, "create this `queue`, which delivers up to 180 tasks "+
		"at once; repeatable; empty creates none")
	flags.Int64Var(&versions, "version-memory", 256,
		"the `MiB` of old versions of entities that each database keeps; reads of dropped versions are refused")
	flags.Int64Var(&indexed, "index-memory", 1024,
		"the `MiB` of indexes that each database keeps; dropped ones are built again when needed")
	flags.StringVar(&pages, "dashboard", "", "serve a dashboard at this `HOST:PORT`: it shows the jobs of all "+
		"queues in the project of --queue, and can start prebuilt mappers")
	flags.Lookup("dashboard").NoOptDefVal = "127.0.0.1:8125"
	return c
}

// complete checks the flags of the emulator, and completes its options. It adds the loopback
// address to addresses without a host, and reads the file indexes, unless this name is empty. The
// parameter keepNames says that the name of a deleted queue stays reserved.
func complete(o *emulator.Options, indexes string, keepNames bool) error {
	o.ReuseQueueNames = !keepNames
	for name, addr := range map[string]*string{"--datastore": &o.DatastoreAddr, "--tasks": &o.TasksAddr,
		"--keys": &o.KeysAddr} {
		host, port, err := net.SplitHostPort(*addr)
		if err != nil {
			return usageError(fmt.Errorf("%s is %q, it has to be HOST:PORT", name, *addr))
		}
		if host == "" {
			host = "127.0.0.1" // without a host, listen on the loopback address only
		}
		*addr = net.JoinHostPort(host, port)
	}
	if indexes != "" {
		contents, err := os.ReadFile(indexes)
		if err != nil {
			return fmt.Errorf("--indexes: %w", err)
		}
		o.Indexes = append([]byte{}, contents...) // not nil: an empty file means that there are no indexes
	}
	return nil
}

// bound sets the emulator's limits of memory, for old versions of entities and for indexes, and
// checks its other number. The parameters versions and indexed come from flags, and are in MiB.
func bound(o *emulator.Options, versions, indexed int64) error {
	for name, mib := range map[string]int64{"--version-memory": versions, "--index-memory": indexed} {
		if mib < 0 || mib > math.MaxInt64>>20 {
			return usageError(fmt.Errorf("%s is %d MiB, it has to be at least 0", name, mib))
		}
	}
	if o.ScatterOneIn < 1 || o.ScatterOneIn > 1<<16 {
		return usageError(fmt.Errorf("--scatter is %d, it has to be in [1, %d]", o.ScatterOneIn, 1<<16))
	}
	// at least 1, because 0 means the default
	o.VersionMemory, o.IndexMemory = max(versions<<20, 1), max(indexed<<20, 1)
	return nil
}

// named removes empty and repeated names from a list of queues.
func named(queues []string) (names []string) {
	for _, q := range queues {
		if q != "" && !slices.Contains(names, q) {
			names = append(names, q)
		}
	}
	return names
}

// createQueue creates a queue with the settings that docs/deploy.md recommends. If the name is
// empty, it does nothing.
func createQueue(ctx context.Context, e *emulator.Emulator, name string) error {
	if name == "" {
		return nil
	}
	client, err := e.TasksClient(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	parent, _, _ := strings.Cut(name, "/queues/")
	_, err = client.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: parent,
		Queue: &cloudtaskspb.Queue{Name: name,
			RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 180},
			RetryConfig: &cloudtaskspb.RetryConfig{MaxAttempts: -1,
				MinBackoff: durationpb.New(100 * time.Millisecond), MaxBackoff: durationpb.New(time.Minute)}}})
	if err != nil {
		return fmt.Errorf("--queue %q: %w; it has to be projects/PROJECT/locations/LOCATION/queues/QUEUE", name, err)
	}
	return nil
}

// serve runs the emulator until ctx ends. If pages, the address of the dashboard, is not empty, it
// also serves the dashboard.
func serve(ctx context.Context, o *emulator.Options, queues []string, pages string, stdout, stderr io.Writer) error {
	e, err := emulator.Start(o)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: end the other program, or choose another address by --datastore, --tasks or --keys", err)
	}
	if err != nil {
		return err
	}
	defer e.Close()
	queue := "" // the first of the queues, whose jobs the dashboard shows
	for i, name := range queues {
		// after an interrupt, the emulator still starts, and then ends below
		if err := createQueue(context.WithoutCancel(ctx), e, name); err != nil {
			return err
		}
		if i == 0 {
			queue = name
		}
	}
	for _, addr := range []string{e.DatastoreAddr(), e.TasksAddr(),
		strings.TrimSuffix(strings.TrimPrefix(e.KeysURL(), "http://"), "/")} {
		if host, _, err := net.SplitHostPort(addr); err == nil && !net.ParseIP(host).IsLoopback() {
			fmt.Fprintf(stderr, "warning: other machines can reach %s, and it checks no tokens\n", addr)
		}
	}
	out := fmt.Sprintf(`export DATASTORE_EMULATOR_HOST=%s
export CLOUD_TASKS_EMULATOR_HOST=%s
export OIDC_KEYS_URL=%s
`, e.DatastoreAddr(), e.TasksAddr(), e.KeysURL())
	if queue != "" {
		out += fmt.Sprintf("export TASKS_QUEUE=%s\n", queue)
	}
	if pages != "" {
		d, err := openPages(context.WithoutCancel(ctx), e, queue, pages)
		if err != nil {
			return err
		}
		defer d.Close()
		out += fmt.Sprintf("export DATASTORE_PROJECT_ID=%s\nexport SCATTERMAP_DASHBOARD=%s\n", d.project, d.url)
		fmt.Fprintf(stderr, "dashboard: %s\n", d.url)
	}
	if _, err := io.WriteString(stdout, out); err != nil {
		return err
	}
	fmt.Fprintln(stderr, "serving; Ctrl+C stops it and deletes all data")
	<-ctx.Done()
	return nil
}
