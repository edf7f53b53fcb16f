package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/mapper"
)

// A Subscription is an entity. Its owner pays for it each time that it is renewed, every few days.
type Subscription struct {
	Country string
	Cents   int64 // the price in cents
	// the day on which the next renewal is due, and the days after it, in case the service does not
	// run on that day
	Due      []string
	Paid     int64 // the sum of all payments in cents
	Renewals int64 // number of renewals
}

// days is the number of days between two renewals.
const days = 3

// dayOf returns the date of a night as a text.
func dayOf(night time.Time) string { return night.UTC().Format(time.DateOnly) }

// catchUp is the number of missed nights that the next run can make up for.
const catchUp = 6

// dueFrom returns the value of Subscription.Due if the renewal is due on the given night. A run
// looks for its own day among the values. A filter with "=" needs no further index, unlike one with
// "<=".
func dueFrom(night time.Time) (all []string) {
	for i := range catchUp + 1 {
		all = append(all, dayOf(night.AddDate(0, 0, i)))
	}
	return all
}

// dueIn returns the query for the subscriptions that the run of a night renews.
func dueIn(night time.Time) mapper.Query {
	return mapper.Query{Kind: "Subscription", Filters: []mapper.Filter{{Property: "Due", Op: "=", Value: dayOf(night)}}}
}

// newRenew returns the mapper that renews due subscriptions. For each it first calls pay.
func newRenew(pay func(ctx context.Context, night time.Time) error) *mapper.Mapper[time.Time] {
	return mapper.Update("renew", func(ctx context.Context, s *mapper.Entity[Subscription], night time.Time) error {
		if err := pay(ctx, night); err != nil {
			return err
		}
		s.Value.Due = dueFrom(night.AddDate(0, 0, days))
		s.Value.Paid += s.Value.Cents
		s.Value.Renewals++
		s.Count("renewed/"+s.Value.Country, 1)
		s.Count("cents/"+s.Value.Country, s.Value.Cents)
		s.CountMin(s.Value.Country, s.Value.Cents)
		s.CountMax(s.Value.Country, s.Value.Cents)
		return nil
	}).WithFinalizer(func(_ context.Context, d *mapper.Completion, night time.Time) error {
		day, of := Day{Night: night}, d.Status.Counters
		for name, n := range of {
			if country, ok := strings.CutPrefix(name, "renewed/"); ok {
				day.Countries = append(day.Countries, Country{country, n, of["cents/"+country], of["min("+country+")"],
					of["max("+country+")"]})
			}
		}
		d.Put(dayKey(night), &day) // committed together with the end of the job, so exactly once
		return nil
	})
}

// A Day is an entity with the aggregates of one night's renewals.
type Day struct {
	Night     time.Time
	Countries []Country `datastore:",noindex"`
}

// A Country has the aggregates of one night's renewals in a country.
type Country struct {
	Name    string
	Renewed int64
	Cents   int64 // the sum of all renewals; Least and Most are the smallest and the largest one
	Least   int64
	Most    int64
}

func dayKey(night time.Time) *datastore.Key {
	return datastore.NameKey("Day", dayOf(night), nil)
}

// The account and the audience of the tokens that the scheduler sends.
const (
	schedulerAccount = "scheduler@example.iam.gserviceaccount.com"
	audience         = "https://cron.example.com"
)

// A service has the HTTP endpoint that Cloud Scheduler calls.
type service struct {
	engine   *mapper.Engine
	schedule *mapper.Schedule[time.Time]
	options  mapper.StartOptions
}

// handler returns the endpoint. It accepts only requests with a token of the scheduler's account.
func (s *service) handler(keysURL string) (http.Handler, error) {
	verifier, err := auth.NewOIDC(audience, []string{schedulerAccount}, keysURL)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	quiet := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	mux.Handle("POST /nightly", verifier.Require(quiet, http.HandlerFunc(s.nightly)))
	return mux, nil
}

// nightly starts the work of a night. Cloud Scheduler sends the time for which the call was
// scheduled. This time identifies the tick, so another call with the same time starts nothing, even
// a day later. After an error Cloud Scheduler calls again.
func (s *service) nightly(w http.ResponseWriter, r *http.Request) {
	at, err := time.Parse(time.RFC3339, r.Header.Get("X-CloudScheduler-ScheduleTime"))
	if err != nil {
		http.Error(w, "the header X-CloudScheduler-ScheduleTime has no time: "+err.Error(), http.StatusBadRequest)
		return
	}
	options := s.options
	ticked, err := s.schedule.Tick(r.Context(), s.engine, at, dueIn(at), at, &options)
	if err != nil {
		status := http.StatusServiceUnavailable
		if errors.Is(err, mapper.ErrInvalidArgument) {
			status = http.StatusBadRequest
		}
		http.Error(w, err.Error(), status)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer{string(ticked.Outcome), ticked.Job.ID})
}

// An answer is the JSON that the endpoint returns: the outcome of a tick.
type answer struct {
	Outcome string `json:"outcome"`
	Job     string `json:"job"`
}
