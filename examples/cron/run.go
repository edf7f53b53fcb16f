package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
)

// firstNight is when the scheduler calls first.
var firstNight = time.Date(2026, 1, 5, 1, 0, 0, 0, time.UTC)

// calls is how often it calls each night, all at once: it delivers at least once.
const calls = 5

// run has nights pass, and checks what they come to.
func run(ctx context.Context, c config, stdout io.Writer) error {
	s := service{schedule: mapper.NewSchedule("nightly", renew, mapper.Overlap(c.overlap)), options: mapper.StartOptions{PageSize: c.Page, AllowEmpty: true}}
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Keys: true,
		Mappers: mapper.Set(renew), Schedules: []mapper.ScheduleDefinition{s.schedule}})
	if err != nil {
		return err
	}
	defer on.Close()
	s.engine = on.Engine
	handler, err := s.handler(on.KeysURL())
	if err != nil {
		return err
	}
	server := httptest.NewServer(handler) // on a loopback port
	defer server.Close()
	if err := fill(ctx, on.Client, c.subscriptions); err != nil {
		return fmt.Errorf("write the subscriptions: %w", err)
	}
	sc := scheduler{on: on, url: server.URL + "/nightly"}
	r, err := sc.nights(ctx, c, s)
	if err != nil {
		return err
	}
	if err = visitByShards(ctx, on.Client, firstNight, c.subscriptions); err != nil {
		return fmt.Errorf("fixed shards: %w", err)
	}
	if err := check(ctx, on.Client, c, &r); err != nil {
		return err
	}
	return r.print(stdout, c.JSON)
}

// countries are where subscribers live.
var countries = []string{"AT", "BR", "CH", "DE", "FR", "IN", "JP", "US"}

// fill writes subscriptions, of which a third is due each night.
func fill(ctx context.Context, client *datastore.Client, n int) error {
	for from := 0; from < n; from += 500 {
		var keys []*datastore.Key
		var all []Subscription
		for i := from; i < min(from+500, n); i++ {
			keys = append(keys, datastore.IDKey("Subscription", int64(i+1), nil))
			all = append(all, Subscription{Country: countries[i%len(countries)], Cents: int64(100 + i%7), Due: dayOf(firstNight.AddDate(0, 0, i%days))})
		}
		if _, err := client.PutMulti(ctx, keys, all); err != nil {
			return err
		}
	}
	return nil
}

// A scheduler calls the service, as Cloud Scheduler does.
type scheduler struct {
	on  *cloud.Cloud
	url string
}

// call calls once, with a token of an account, and returns the status and what became of the tick.
func (sc scheduler) call(ctx context.Context, account string, night time.Time) (int, answer, error) {
	var a answer
	token, err := sc.on.Token(account, audience)
	if err != nil {
		return 0, a, err
	}
	req, err := http.NewRequestWithContext(ctx, "POST", sc.url, nil)
	if err != nil {
		return 0, a, err
	}
	req.Header.Set("Authorization", "Bearer "+token)
	req.Header.Set("X-CloudScheduler-ScheduleTime", night.Format(time.RFC3339))
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, a, err
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode == http.StatusOK {
		err = json.Unmarshal(text, &a)
	} else if err == nil {
		a.Outcome = strings.TrimSpace(string(text))
	}
	return resp.StatusCode, a, err
}

// insist calls until it is answered with success.
func (sc scheduler) insist(ctx context.Context, night time.Time) (answer, error) {
	for {
		status, a, err := sc.call(ctx, schedulerAccount, night)
		if err != nil || status == http.StatusOK {
			return a, err
		}
		if status < 500 {
			return a, fmt.Errorf("the service answered %d: %s", status, a.Outcome)
		}
		select {
		case <-ctx.Done():
			return a, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// nights has the scheduler call each night, several times at once, and waits for the runs.
func (sc scheduler) nights(ctx context.Context, c config, s service) (result, error) {
	r := result{Subscriptions: c.subscriptions, Nights: c.nights, Became: make(map[string]int)}
	status, _, err := sc.call(ctx, "stranger@example.com", firstNight)
	if err != nil {
		return r, err
	}
	if status == http.StatusOK {
		return r, errors.New("a stranger may start the nightly work")
	}
	r.Refused++
	for i := range c.nights {
		night := firstNight.Add(time.Duration(i) * 24 * time.Hour)
		var group sync.WaitGroup
		var mu sync.Mutex
		var failed error
		for range calls {
			group.Go(func() {
				a, err := sc.insist(ctx, night)
				mu.Lock()
				defer mu.Unlock()
				r.Calls++
				r.Became[a.Outcome]++
				failed = errors.Join(failed, err)
			})
		}
		group.Wait()
		if failed != nil {
			return r, failed
		}
		job, err := s.engine.Job(s.schedule.RunID(night)).Wait(ctx)
		if err != nil {
			return r, fmt.Errorf("night %d: %w", i, err)
		}
		if job.State != mapper.Succeeded {
			return r, fmt.Errorf("night %d: job %s is %s: %s", i, job.ID, job.State, job.Error)
		}
	}
	jobs, _, err := s.engine.Jobs(ctx, &mapper.JobsOptions{Mapper: renew.Name()}, "")
	r.Runs = len(jobs)
	return r, err
}

// check reads the subscriptions and the last night's aggregates, and compares them with what they should be.
func check(ctx context.Context, client *datastore.Client, c config, r *result) error {
	var all []Subscription
	keys, err := client.GetAll(ctx, datastore.NewQuery("Subscription"), &all)
	if err != nil {
		return err
	}
	want := make(map[string]Country) // of the last night
	for i, s := range all {
		n := int(keys[i].ID - 1)
		renewals := int64((c.nights - 1 - n%3 + 3) / 3)
		if s.Paid != renewals*s.Cents {
			return fmt.Errorf("subscription %d has paid %d cents, and was due %d times for %d", n, s.Paid, renewals, s.Cents)
		}
		if s.Visitors != 1 {
			return fmt.Errorf("subscription %d was visited %d times by the shards", n, s.Visitors)
		}
		r.Renewed += renewals
		if s.Of == 4 {
			r.Shards.By4++
		} else {
			r.Shards.By8++
		}
		if (c.nights-1)%3 == n%3 {
			of := want[s.Country]
			want[s.Country] = Country{s.Country, of.Renewed + 1, of.Cents + s.Cents}
		}
	}
	if n := r.Shards.By4 + r.Shards.By8; len(all) != c.subscriptions || n != c.subscriptions {
		return fmt.Errorf("there are %d subscriptions, of which the shards have visited %d, want %d", len(all), n, c.subscriptions)
	}
	var day Day
	if err := client.Get(ctx, dayKey(firstNight.Add(time.Duration(c.nights-1)*24*time.Hour)), &day); err != nil {
		return fmt.Errorf("the last night's aggregates: %w", err)
	}
	r.Countries = len(day.Countries)
	if len(day.Countries) != len(want) || slices.ContainsFunc(day.Countries, func(c Country) bool { return want[c.Name] != c }) {
		return fmt.Errorf("the last night's aggregates are %v, want %v", day.Countries, want)
	}
	if r.Runs > c.nights {
		return fmt.Errorf("%d nights have %d runs", c.nights, r.Runs)
	}
	return nil
}
