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

// firstNight is the time of the scheduler's first call.
var firstNight = time.Date(2026, 1, 5, 1, 0, 0, 0, time.UTC)

// calls is the number of concurrent calls that the scheduler makes each night, because a scheduler
// may deliver a call several times.
const calls = 5

// run is the whole example: it runs the nights, sends the orders, checks the results, and prints
// them.
func run(ctx context.Context, c config, stdout io.Writer) error {
	slow := make(chan struct{}) // closed when the payments of the first night may become fast
	renew := newRenew(func(ctx context.Context, night time.Time) error {
		if !night.Equal(firstNight) {
			return nil
		}
		select {
		case <-slow:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	})
	s := service{schedule: mapper.NewSchedule("nightly", renew, mapper.Overlap(c.overlap)),
		options: mapper.StartOptions{PageSize: c.Page, AllowEmpty: true}}
	w := newWarehouse()
	warehouse, closing := w.open()
	defer closing()
	sending := newSend(warehouse.send)
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Keys: true,
		Mappers: []mapper.AnyMapper{renew, rewrite, sending}, Schedules: []mapper.AnySchedule{s.schedule}})
	if err != nil {
		return err
	}
	defer on.Close()
	s.engine = on.Engine
	handler, err := s.handler(on.KeysURL())
	if err != nil {
		return err
	}
	server := httptest.NewServer(handler) // listens on a loopback port
	defer server.Close()
	if err := fill(ctx, on.Client, c.subscriptions); err != nil {
		return fmt.Errorf("write the subscriptions: %w", err)
	}
	sc := scheduler{on: on, url: server.URL + "/nightly"}
	r, err := sc.nights(ctx, c, s, slow)
	if err != nil {
		return err
	}
	if err := check(ctx, on.Client, c, &r); err != nil {
		return err
	}
	if r.Orders, err = sendOrders(ctx, on, c, sending, w, warehouse); err != nil {
		return fmt.Errorf("orders: %w", err)
	}
	return r.print(stdout, c.JSON)
}

// countries has the countries of the subscribers.
var countries = []string{"AT", "BR", "CH", "DE", "FR", "IN", "JP", "US"}

// fill writes n subscriptions. A third of them is due each night.
func fill(ctx context.Context, client *datastore.Client, n int) error {
	for from := 0; from < n; from += 500 {
		var keys []*datastore.Key
		var all []Subscription
		for i := from; i < min(from+500, n); i++ {
			keys = append(keys, datastore.IDKey("Subscription", int64(i+1), nil))
			all = append(all, Subscription{Country: countries[i%len(countries)], Cents: int64(100 + i%7),
				Due: dueFrom(firstNight.AddDate(0, 0, i%days))})
		}
		if _, err := client.PutMulti(ctx, keys, all); err != nil {
			return err
		}
	}
	return nil
}

// A scheduler calls the service as Cloud Scheduler does.
type scheduler struct {
	on  *cloud.Cloud
	url string
}

// call makes one call for a night, with a token of the given account. It returns the status code
// and the outcome of the tick.
func (sc scheduler) call(ctx context.Context, account string, night time.Time) (int, answer, error) {
	var a answer
	token, err := sc.on.Token(account, audience)
	if err != nil {
		return 0, a, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, sc.url, nil)
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

// insist repeats the call for a night until it succeeds.
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

// nights calls the service each night, several times concurrently, and waits for the runs. When the
// second night's calls come, the first night's run has not ended.
func (sc scheduler) nights(ctx context.Context, c config, s service, slow chan struct{}) (result, error) {
	r := result{Subscriptions: c.subscriptions, Nights: c.nights, Overlap: c.overlap}
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
		became, err := sc.callAtOnce(ctx, night)
		if err != nil {
			return r, err
		}
		r.Became = append(r.Became, became)
		r.Calls += calls
		if i == 0 && c.nights > 1 {
			continue // do not wait: the next night's calls come during this run
		}
		if i <= 1 {
			close(slow)
		}
		if became == string(mapper.TickSkipped) {
			night = firstNight // the tick was skipped, because the first night's run has not ended: wait for that one
		}
		if err := s.await(ctx, night); err != nil {
			return r, fmt.Errorf("night %d: %w", i+1, err)
		}
	}
	jobs, _, err := s.engine.JobsPage(ctx, &mapper.JobsOptions{Mapper: "renew"}, "")
	if err != nil {
		return r, err
	}
	for _, job := range jobs {
		status, err := s.engine.Job(job.ID).Wait(ctx) // the first night's run may not have ended yet
		if err != nil {
			return r, err
		}
		r.Runs++
		for name, n := range status.Counters {
			if strings.HasPrefix(name, "renewed/") {
				r.Renewed += n
			}
		}
	}
	return r, nil
}

// callAtOnce makes several concurrent calls for a night. It returns their outcome, which must be
// the same for all.
func (sc scheduler) callAtOnce(ctx context.Context, night time.Time) (string, error) {
	answers, errs := make([]answer, calls), make([]error, calls)
	var group sync.WaitGroup
	for i := range calls {
		group.Go(func() { answers[i], errs[i] = sc.insist(ctx, night) })
	}
	group.Wait()
	for _, a := range answers {
		if a.Outcome != answers[0].Outcome {
			errs = append(errs, fmt.Errorf("calls for %s are answered %v", dayOf(night), answers))
		}
	}
	return answers[0].Outcome, errors.Join(errs...)
}

// await waits until the run of a night has ended.
func (s service) await(ctx context.Context, night time.Time) error {
	for {
		job, err := s.engine.Job(s.schedule.JobID(night)).Wait(ctx)
		if err == nil {
			err = job.Err()
		}
		if !errors.Is(err, mapper.ErrNoSuchJob) {
			return err
		}
		select { // the run may wait for the end of the run before
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// renewals returns how many times the runs of the given nights renew subscription n. Nights are
// numbered from 0.
func renewals(n int, nights []int) (times int64) {
	due := n % days
	for _, night := range nights {
		if due <= night {
			due = night + days
			times++
		}
	}
	return times
}

// mayHave returns the possible numbers of renewals of subscription n. There are several if a run
// was replaced before it had processed all subscriptions.
func (r *result) mayHave(n int) []int64 {
	var nights []int
	for i, became := range r.Became {
		if became != string(mapper.TickSkipped) {
			nights = append(nights, i)
		}
	}
	all := []int64{renewals(n, nights)}
	if r.Overlap == string(mapper.OverlapReplace) && r.Nights > 1 {
		all = append(all, renewals(n, nights[1:]))
	}
	return all
}

// check reads the subscriptions and the last night's aggregates. It returns an error if any of them
// is wrong.
func check(ctx context.Context, client *datastore.Client, c config, r *result) error {
	var all []Subscription
	keys, err := client.GetAll(ctx, datastore.NewQuery("Subscription"), &all)
	if err != nil {
		return err
	}
	last := firstNight // the last night that had a run
	for i, became := range r.Became {
		if became != string(mapper.TickSkipped) {
			last = firstNight.Add(time.Duration(i) * 24 * time.Hour)
		}
	}
	want, renewed := make(map[string]Country), int64(0) // the expected aggregates and renewals of the last night
	for i, s := range all {
		if n := int(keys[i].ID - 1); s.Paid != s.Renewals*s.Cents || !slices.Contains(r.mayHave(n), s.Renewals) {
			return fmt.Errorf("subscription %d has paid %d cents in %d renewals for %d, want %d of them", n, s.Paid,
				s.Renewals, s.Cents, r.mayHave(n))
		}
		renewed += s.Renewals
		if s.Due[0] == dayOf(last.AddDate(0, 0, days)) {
			of, there := want[s.Country]
			if !there {
				of = Country{Name: s.Country, Least: s.Cents}
			}
			want[s.Country] = Country{s.Country, of.Renewed + 1, of.Cents + s.Cents, min(of.Least, s.Cents),
				max(of.Most, s.Cents)}
		}
	}
	if renewed != r.Renewed {
		return fmt.Errorf("subscriptions were renewed %d times, and the runs have counted %d", renewed, r.Renewed)
	}
	var day Day
	if err := client.Get(ctx, dayKey(last), &day); err != nil {
		return fmt.Errorf("the last night's aggregates: %w", err)
	}
	r.Countries = len(day.Countries)
	if len(day.Countries) != len(want) || slices.ContainsFunc(day.Countries, func(c Country) bool {
		return want[c.Name] != c
	}) {
		return fmt.Errorf("the last night's aggregates are %v, want %v", day.Countries, want)
	}
	if len(all) != c.subscriptions {
		return fmt.Errorf("there are %d subscriptions, want %d", len(all), c.subscriptions)
	}
	return nil
}
