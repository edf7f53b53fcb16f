package mapper_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

type amount struct {
	Amount int64 `json:"amount"`
}

func (p amount) Validate() error {
	if p.Amount <= 0 {
		return fmt.Errorf(`"amount" is %d, it has to be positive`, p.Amount)
	}
	return nil
}

type byPointer struct {
	Text string `json:"text"`
}

func (p *byPointer) Validate() error {
	if p.Text == "panic" {
		panic("it can't be looked at")
	}
	if p.Text == "" {
		return errors.New(`"text" is missing`)
	}
	return nil
}

// TestValidate has the parameters' own type be asked wherever a job is about to start: by its
// value, by its name, as a rehearsal, by a schedule, and for a plan. What it refuses has left
// nothing.
func TestValidate(t *testing.T) {
	t.Parallel()
	add := mapper.Update("add", func(_ context.Context, e *mapper.Entity[account], p amount) error { return nil })
	text := mapper.Visit("text", func(context.Context, *mapper.Entity[account], byPointer) error { return nil })
	pointed := mapper.VisitPages("pointed", func(context.Context, *mapper.Entity[account], *byPointer) (int,
		error) {
		return 0, nil
	},
		func(context.Context, *mapper.Page[int], *byPointer) error { return nil })
	schedule := mapper.NewSchedule("hourly", add, mapper.OverlapQueue)
	mappertest.Run(t, []mapper.AnyMapper{add, text, pointed}, &mappertest.Options{
		Schedules: []mapper.AnySchedule{schedule},
	}, func(t *testing.T, w *mappertest.Env) {
		key := datastore.NameKey("Account", "a", nil)
		if _, err := w.Client.Put(t.Context(), key, &account{}); err != nil {
			t.Fatal(err)
		}
		q := mapper.Query{Kind: "Account"}
		refused := func(what string, err error, want string) {
			t.Helper()
			if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		_, err := add.Start(t.Context(), w.Engine, q, amount{}, nil)
		refused("a start", err, `"amount" is 0`)
		_, err = add.Start(t.Context(), w.Engine, q, amount{-1}, &mapper.StartOptions{DryRun: true})
		refused("a rehearsal", err, `"amount" is -1`)
		_, err = schedule.Tick(t.Context(), w.Engine, time.Now(), q, amount{}, nil)
		refused("a tick", err, `"amount" is 0`)
		_, err = text.Start(t.Context(), w.Engine, q, byPointer{}, nil)
		refused("a pointer's method", err, `"text" is missing`)
		_, err = text.Start(t.Context(), w.Engine, q, byPointer{"panic"}, nil)
		refused("a panic", err, "it can't be looked at")
		_, err = pointed.Start(t.Context(), w.Engine, q, &byPointer{}, nil)
		refused("a pointer", err, `"text" is missing`)
		for _, c := range [][3]string{
			{"add", `{}`, `"amount" is 0`}, {"add", `{"amount": null}`, `"amount" is null`}, {"add",
				`{"amount": 1, "amount": 2}`, "twice"}, {"add", `{"amount": 1, "x": 2}`, `"x"`},
			{"text", `{}`, `"text" is missing`}, {"pointed", `{}`, `"text" is missing`}, {"pointed", `null`, "null"},
		} {
			_, err := w.Engine.StartByName(t.Context(), c[0], q, json.RawMessage(c[1]), nil)
			refused(c[0]+" "+c[1], err, c[2])
			_, err = w.Engine.PlanByName(t.Context(), c[0], q,
				&mapper.PlanOptions{Params: json.RawMessage(c[1])})
			refused("a plan of "+c[0]+" "+c[1], err, c[2])
		}
		if jobs, _, err := w.Engine.JobsPage(t.Context(), nil, ""); err != nil || len(jobs) > 0 {
			t.Errorf("there are jobs: %+v, %v", jobs, err)
		}
		if _, err := w.Engine.PlanByName(t.Context(), "add", q, nil); err != nil {
			t.Errorf("a plan without parameters: %v", err)
		}
		if job, err := add.Start(t.Context(), w.Engine, q, amount{1}, nil); err != nil {
			t.Error(err)
		} else if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded {
			t.Errorf("%+v, %v", s, err)
		}
	})
}

// TestParamsAsTheyAre has numbers of all sizes come to the function as they were given, or not at
// all.
func TestParamsAsTheyAre(t *testing.T) {
	t.Parallel()
	type params struct {
		Any  any            `json:"any"`
		Map  map[string]any `json:"map"`
		Int  int64          `json:"int"`
		Uint uint64         `json:"uint"`
	}
	var got params
	m := mapper.Visit("m", func(_ context.Context, _ *mapper.Entity[account], p params) error {
		got = p
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{m}, nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.NameKey("Account", "a", nil), &account{}); err != nil {
			t.Fatal(err)
		}
		for _, test := range []struct {
			given params
			taken bool
		}{
			{params{Any: 1.5, Map: map[string]any{"a": 1e300}, Int: 1<<63 - 1, Uint: 1<<64 - 1}, true},
			{params{Any: float64(1 << 53), Map: map[string]any{"a": []any{"9007199254740993"}}}, true},
			{params{Any: int64(1<<53 + 1)}, false},
			{params{Map: map[string]any{"a": []any{map[string]any{"b": int64(-1<<53 - 1)}}}}, false},
			{params{Any: uint64(1<<64 - 1)}, false},
			{params{Any: json.Number("0.1000000000000000000000000000000001")}, false},
		} {
			job, err := m.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, test.given, nil)
			if !test.taken {
				if !errors.Is(err, mapper.ErrInvalidArgument) || !strings.Contains(err.Error(), "float64") {
					t.Errorf("%+v: %v, want it refused", test.given, err)
				}
				continue
			}
			if err != nil {
				t.Error(err)
				continue
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !reflect.DeepEqual(got, test.given) {
				t.Errorf("the function got %+v, want %+v", got, test.given)
			}
		}
	})
}
