package mappertest_test

import (
	"context"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// The code of docs/guide.md equals the code of this file.

type Team struct {
	Seats int
	Large bool // new
}

var SetLarge = mapper.Update("set-large", func(_ context.Context, t *mapper.Entity[Team], _ mapper.NoParams) error {
	t.Value.Large = t.Value.Seats > 10
	return nil
})

func TestSetLarge(t *testing.T) {
	team := Team{Seats: 20}
	r := mappertest.Apply(t, SetLarge, &team, mapper.NoParams{})
	if r.Err != nil || !r.Changed || !team.Large {
		t.Errorf("%+v, %+v", r, team)
	}
}

func TestSetLargeJob(t *testing.T) {
	o := &mappertest.Options{Seed: 1} // of random faults
	mappertest.Run(t, []mapper.AnyMapper{SetLarge}, o, func(t *testing.T, w *mappertest.Env) {
		key := datastore.NameKey("Team", "ada", nil)
		if _, err := w.Client.Put(t.Context(), key, &Team{Seats: 20}); err != nil {
			t.Fatal(err)
		}
		job, err := SetLarge.Start(t.Context(), w.Engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		w.ResumeFaults()           // calls fail, and tasks are delivered twice
		time.Sleep(24 * time.Hour) // virtual time, which passes at once
		w.PauseFaults()
		status, err := job.Status(t.Context())
		if err != nil || status.Err() != nil {
			t.Fatalf("%+v, %v", status, err)
		}
		var team Team
		if err := w.Client.Get(t.Context(), key, &team); err != nil || !team.Large {
			t.Errorf("%+v, %v", team, err)
		}
	})
}
