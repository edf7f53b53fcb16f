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

// A Subscription is an entity that is paid for and renewed when it is due.
type Subscription struct {
	Country  string
	Cents    int64    // the price in cents
	Due      []string // the day on which the subscription is due, and the days after it, for nights without a run
	Paid     int64    // the sum of all payments in cents
	Renewals int64    // number of payments
}

// days is the number of days between two renewals.
const days = 3

// dayOf returns the day of a night as a text.
func dayOf(night time.Time) string { return night.UTC().Format(time.DateOnly) }

// catchUp is how many missed nights the next run makes up for.
const catchUp = 6

// dueFrom returns the days to store for a subscription that is due on the day of a night. A filter
// for one of several values needs no index of its own; a filter with "<=" does.
func dueFrom(night time.Time) (all []string) {
	for i := range catchUp + 1 {
		all = append(all, dayOf(night.AddDate(0, 0, i)))
	}
	return all
}

// dueIn returns the query for the subscriptions that a night's run renews.
func dueIn(night time.Time) mapper.Query {
	return mapper.Query{Kind: "Subscription", Filters: []mapper.Filter{{Property: "Due", Op: "=", Value: dayOf(night)}}}
}

// newRenew returns the mapper that renews due subscriptions. It calls pay before it renews.
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
		d.Put(dayKey(night), &day) // committed with the end of the job: exactly once
		return nil
	})
}

// A Day has the aggregates of a night's renewals.
type Day struct {
	Night     time.Time
	Countries []Country `datastore:",noindex"`
}

// A Country has the aggregates of the renewals in one country.
type Country struct {
	Name    string
	Renewed int64
	Cents   int64 // the sum of the renewals; least and greatest single renewals follow
	Least   int64
	Most    int64
}

func dayKey(night time.Time) *datastore.Key {
	return datastore.NameKey("Day", dayOf(night), nil)
}

// Account and audience in the tokens that Cloud Scheduler sends.
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

// handler returns the endpoint, which accepts only requests of the scheduler's account.
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

// nightly starts a night's work. The tick is the time at which the call was due, which Cloud
// Scheduler sends. Another call for that time is the same tick, even a day later. After an error
// Cloud Scheduler calls again.
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

// An answer is the outcome of a tick, as the endpoint returns it.
type answer struct {
	Outcome string `json:"outcome"`
	Job     string `json:"job"`
}
