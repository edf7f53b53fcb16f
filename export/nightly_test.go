package export_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"gocloud.dev/blob/memblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// nightly starts the export of one night. Cloud Scheduler may call twice: it is one export, because
// its ID has the date on which the call was due.
func nightly(teams *export.Export[mapper.NoParams], engine *mapper.Engine, zone *time.Location) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		due, err := time.Parse(time.RFC3339, r.Header.Get("X-CloudScheduler-ScheduleTime"))
		if err != nil {
			http.Error(w, "this is no call of Cloud Scheduler", http.StatusBadRequest)
			return
		}
		o := &export.StartOptions{Folder: "teams"} // ReadManifest finds the last export in it
		o.ID = "export-teams-" + due.In(zone).Format(time.DateOnly)
		o.AllowEmpty = true            // there may be no teams
		o.Retain = 30 * 24 * time.Hour // how long the job's records are kept
		if _, err := teams.Start(r.Context(), engine, mapper.Query{Kind: "Team"}, mapper.NoParams{}, o); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError) // Cloud Scheduler calls again
		}
	}
}

func Example_nightly() {
	ctx := context.Background()
	bucket := memblob.OpenBucket(nil)
	defer bucket.Close()
	teams, err := export.New("export-teams", bucket,
		func(_ context.Context, e *mapper.Entity[Team], _ mapper.NoParams) (TeamLine, error) {
			return TeamLine{e.Key.ID, e.Value.Name, e.Value.Seats}, nil
		}, nil)
	check(err)
	engine, stop := newEngine(ctx, teams.Mappers())
	defer stop()

	handler := nightly(teams, engine, time.UTC)
	for range 2 {
		r := httptest.NewRequest(http.MethodPost, "/nightly", nil)
		r.Header.Set("X-CloudScheduler-ScheduleTime", "2026-11-27T03:00:00Z")
		w := httptest.NewRecorder()
		handler(w, r)
		fmt.Println(w.Code)
	}
	run, err := teams.Find(ctx, engine, "export-teams-2026-11-27")
	check(err)
	_, err = run.Wait(ctx)
	check(err)
	manifest, err := export.ReadManifest(ctx, bucket, "teams")
	check(err)
	fmt.Println(manifest.Records, "records")
	// Output:
	// 200
	// 200
	// 3 records
}
