package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// doomed is an Update that adds 10 to accounts. Its finalizer kills its process.
var doomed = mapper.Update("doomed", func(_ context.Context, a *mapper.Entity[bank.Account], _ mapper.NoParams) error {
	a.Value.Balance += 10
	return nil
}).WithFinalizer(func(context.Context, *mapper.Completion, mapper.NoParams) error {
	os.Exit(3)
	return nil
})

// slow adds 100 to accounts, and takes a while for each.
var slow = mapper.Update("slow", func(_ context.Context, a *mapper.Entity[bank.Account], _ mapper.NoParams) error {
	time.Sleep(100 * time.Millisecond)
	a.Value.Balance += 100
	return nil
})

// TestDeadlyFinalizer runs a job whose finalizer kills every process that runs it, and another job
// at the same time. The first job must fail, and its error must name the cause. The other job must
// have no failures.
func TestDeadlyFinalizer(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves crashes of processes out")
	}
	t.Parallel()
	const n = 1000
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0", TasksAddr: "127.0.0.1:0"})
	f, client, engine := newCloud(t, e, e.DatastoreAddr(), n, 20, doomed, slow)
	accounts := mapper.Query{Kind: "Account"}
	beside, err := slow.Start(t.Context(), engine, accounts, mapper.NoParams{},
		&mapper.StartOptions{ID: "beside", PageSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	job, err := doomed.Start(t.Context(), engine, accounts, mapper.NoParams{}, &mapper.StartOptions{ID: "doomed"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testflag.Patience)
	defer cancel()
	s, err := job.Wait(ctx)
	if err != nil {
		t.Fatalf("%v; %d processes died", err, f.died())
	}
	if s.State != mapper.StateFailed || s.Processed != n ||
		!strings.Contains(s.Error, "the process died 5 times while it did nothing but the finalizer") {
		t.Errorf("%+v, %v", s, err)
	}
	if died := f.died(); died < mapper.MaxDeaths || died > 2*mapper.MaxDeaths {
		t.Errorf("%d processes died", died)
	}
	s, err = beside.Wait(ctx)
	failures, _, _ := beside.FailuresPage(t.Context(), "")
	if err != nil || s.State != mapper.StateSucceeded || s.Processed != n {
		t.Errorf("%+v, failures %+v, %v", s, failures, err)
	}
	if right, err := client.Count(t.Context(), datastore.NewQuery("Account").FilterField("Balance", "=",
		110)); err != nil || right != n {
		t.Errorf("%d of %d accounts were credited by both jobs; %v", right, n, err)
	}
}
