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

// A Subscription is renewed whenever it is due.
type Subscription struct {
	Country  string
	Cents    int64    // it costs so much,
	Due      []string // days: when it is due, and the next ones, for nights without a run
	Paid     int64    // and so much was paid in all,
	Renewals int64    // by so many renewals
}

// days is how many are between two renewals.
const days = 3

// dayOf returns the day of a night.
func dayOf(night time.Time) string { return night.UTC().Format(time.DateOnly) }

// catchUp is how many nights without a run the next one makes up for.
const catchUp = 6

// dueFrom returns the days of a subscription that is due on a day. A filter by one of some values
// needs no index of its own, and one by "<=" does.
func dueFrom(night time.Time) (all []string) {
	for i := range catchUp + 1 {
		all = append(all, dayOf(night.AddDate(0, 0, i)))
	}
	return all
}

// dueIn returns the subscriptions that a night's run renews.
func dueIn(night time.Time) mapper.Query {
	return mapper.Query{Kind: "Subscription", Filters: []mapper.Filter{{Property: "Due", Op: "=", Value: dayOf(night)}}}
}

// newRenew returns the mapper that renews the subscriptions that are due. Whoever pays is asked
// first.
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
		d.Put(dayKey(night), &day) // together with the end of the job: exactly once
		return nil
	})
}

// A Day is what a night has come to: the aggregates of its renewals.
type Day struct {
	Night     time.Time
	Countries []Country `datastore:",noindex"`
}

// A Country is the renewals of one country.
type Country struct {
	Name    string
	Renewed int64
	Cents   int64 // in all; and of one:
	Least   int64
	Most    int64
}

func dayKey(night time.Time) *datastore.Key {
	return datastore.NameKey("Day", dayOf(night), nil)
}

// The account that Cloud Scheduler's tokens name, and whom they are for.
const (
	schedulerAccount = "scheduler@example.iam.gserviceaccount.com"
	audience         = "https://cron.example.com"
)

// A service is what Cloud Scheduler calls.
type service struct {
	engine   *mapper.Engine
	schedule *mapper.Schedule[time.Time]
	options  mapper.StartOptions
}

// handler returns the endpoint, which takes requests of the scheduler's account only.
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
// Scheduler sends; another call for it is the same tick, also a day later. An error has Cloud
// Scheduler call again.
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

// An answer says what became of a tick.
type answer struct {
	Outcome string `json:"outcome"`
	Job     string `json:"job"`
}
