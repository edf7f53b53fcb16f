package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

// patient takes a while for each account, in the queue for what may wait.
var patient = mapper.Update("patient", func(_ context.Context, a *mapper.Entity[account], p credit) error {
	time.Sleep(50 * time.Millisecond)
	a.Value.Balance += p.Amount
	return nil
}).WithQueue("other")

// severalQueues returns a world whose engine has another queue, too, that delivers one task at
// once.
func severalQueues(t *testing.T, mappers ...mapper.AnyMapper) *world {
	t.Helper()
	w := newWorld(t, setting{queue: few(4)})
	client := w.tasksClient()
	if _, err := client.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: otherQueue, RateLimits: few(1).RateLimits}}); err != nil {
		t.Fatal(err)
	}
	other, err := tasks.NewQueue(client, otherQueue, target, &tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		t.Fatal(err)
	}
	w.engine, err = mapper.NewEngine(w.client, w.queue,
		&mapper.EngineOptions{Mappers: mappers, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
			OtherQueues: []*tasks.Queue{other}})
	if err != nil {
		t.Fatal(err)
	}
	w.handler = w.engine.Handler()
	return w
}

// TestSeveralQueues has an engine run jobs of two queues: of the one that a mapper names, and of
// the one that a start names. Whatever is done to them by their IDs finds their queue, also after
// that is purged.
func TestSeveralQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, patient, addCredit), t.Context()
		const n = 400
		w.putAccounts(names(n))
		accounts := mapper.Query{Kind: "Account"}
		start := func(m *mapper.Mapper[credit], id, queue string) *mapper.Job {
			job, err := m.Start(ctx, w.engine, accounts, credit{1},
				&mapper.StartOptions{ID: id, Queue: queue, PageSize: 20})
			if err != nil {
				t.Fatal(err)
			}
			return job
		}
		start(patient, "by-mapper", "")
		time.Sleep(time.Second)
		start(addCredit, "first", "")
		time.Sleep(time.Second)
		start(addCredit, "by-start", otherQueue)

		slow := w.engine.Job("by-mapper")
		if err := slow.Pause(ctx); err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * time.Second) // what is under way ends
		if _, err := w.tasksClient().PurgeQueue(ctx, &cloudtaskspb.PurgeQueueRequest{Name: otherQueue}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Minute) // that takes a minute
		if err := slow.Resume(ctx); err != nil {
			t.Fatal(err)
		}
		if err := slow.SetRate(ctx, mapper.Rate{EntitiesPerSecond: 1000}); err != nil {
			t.Error(err)
		}
		if err := w.engine.ReviveJobs(ctx); err != nil {
			t.Error(err)
		}
		for id, queue := range map[string]string{"by-mapper": otherQueue, "first": queueName, "by-start": otherQueue} {
			s, err := w.engine.Job(id).Wait(ctx)
			if err != nil || s.State != mapper.StateSucceeded || s.Processed != n || s.Queue != queue {
				t.Errorf("%s: %+v, %v; want it to be of %s", id, s, err, queue)
			}
		}
		var all []account
		if _, err := w.client.GetAll(ctx, datastore.NewQuery("Account").Order("__key__"), &all); err != nil ||
			len(all) != n {
			t.Fatalf("%d accounts, %v", len(all), err)
		}
		for i, a := range all {
			if a.Balance != int64(i+3) {
				t.Fatalf("account %d has %d, want %d", i, a.Balance, i+3)
			}
		}
		jobs, next, err := w.engine.JobsPage(ctx, nil, "")
		var ids []string
		for _, j := range jobs {
			ids = append(ids, j.ID)
		}
		if want := []string{"by-start", "first", "by-mapper"}; err != nil || next != "" || !slices.Equal(ids, want) {
			t.Errorf("Jobs returned %v, %q, %v; want %v", ids, next, err, want)
		}

		job := w.engine.Job("by-start") // its mapper's place is the first queue
		if err := job.Move(ctx); err != nil {
			t.Error(err)
		}
		if s, err := job.Status(ctx); err != nil || s.Queue != queueName {
			t.Errorf("after the move it is of %+v, %v", s, err)
		}
		if err := slow.CleanUp(ctx, nil); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute) // that takes place
	})
}

// TestJobsOfSeveralQueues lists more jobs of two queues than a page has.
func TestJobsOfSeveralQueues(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w, ctx := severalQueues(t, addCredit), t.Context()
		var want []string
		for i := range 130 {
			id := fmt.Sprintf("job-%03d", i)
			if _, err := addCredit.Start(ctx, w.engine, mapper.Query{Kind: "Account"}, credit{1},
				&mapper.StartOptions{ID: id, AllowEmpty: true,
					Queue: []string{"mapper", "other", "other"}[i%3]}); err != nil {
				t.Fatal(err)
			}
			want = append(want, id)
			time.Sleep(time.Second)
		}
		slices.Reverse(want)
		var found []string
		for cursor, pages := "", 0; cursor != "" || pages == 0; pages++ {
			jobs, next, err := w.engine.JobsPage(ctx, nil, cursor)
			if err != nil {
				t.Fatal(err)
			}
			for _, j := range jobs {
				found = append(found, j.ID)
			}
			cursor = next
		}
		if !slices.Equal(found, want) {
			t.Errorf("Jobs lists %v,\nwant %v", found, want)
		}
	})
}

// TestUnknownQueues has errors name a queue that the engine does not have.
func TestUnknownQueues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := severalQueues(t, addCredit)
		_, err := addCredit.Start(t.Context(), w.engine, mapper.Query{Kind: "Account"}, credit{1},
			&mapper.StartOptions{ID: "none", Queue: "night"})
		if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), `"night"`) ||
			!strings.Contains(err.Error(), otherQueue) {
			t.Errorf("a start in a queue that is not there: %v", err)
		}
		lost := mapper.Update("lost", func(context.Context, *mapper.Entity[account], mapper.NoParams) error {
			return nil
		}).WithQueue("night")
		if _, err := mapper.NewEngine(w.client, w.queue,
			&mapper.EngineOptions{Mappers: []mapper.AnyMapper{lost}}); err == nil ||
			!strings.Contains(err.Error(), `"lost"`) || !strings.Contains(err.Error(), `"night"`) {
			t.Errorf("a mapper of a queue that is not there: %v", err)
		}
		if _, err := mapper.NewEngine(w.client, w.queue, &mapper.EngineOptions{Mappers: []mapper.AnyMapper{addCredit},
			OtherQueues: []*tasks.Queue{w.queue}}); err == nil || !strings.Contains(err.Error(), "already") {
			t.Errorf("a queue twice: %v", err)
		}
	})
}
