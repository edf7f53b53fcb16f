package export_test

import (
	"context"
	"fmt"
	"os"
	"path"

	"gocloud.dev/blob/fileblob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// A Team is an entity of the kind Team.
type Team struct {
	Name  string
	Seats int
}

// A TeamLine is the record of a team, which is a line of a file.
type TeamLine struct {
	ID    int64  `json:"id"`
	Name  string `json:"name"`
	Seats int    `json:"seats"`
}

// The export writes all teams with seats to a folder. In production it writes to a bucket:
// gcsblob.OpenBucket, or blob.OpenBucket(ctx, "gs://my-exports").
func Example() {
	ctx := context.Background()
	dir, _ := os.MkdirTemp("", "teams")
	defer os.RemoveAll(dir)
	bucket, err := fileblob.OpenBucket(dir, &fileblob.Options{Metadata: fileblob.MetadataDontWrite})
	check(err)
	defer bucket.Close()

	teams, err := export.New("export-teams", bucket,
		func(_ context.Context, e *mapper.Entity[Team], _ mapper.NoParams) (TeamLine, error) {
			if e.Value.Seats == 0 {
				return TeamLine{}, mapper.Skip
			}
			return TeamLine{e.Key.ID, e.Value.Name, e.Value.Seats}, nil
		}, &export.Options{Compression: export.Gzip})
	check(err)

	engine, stop := newEngine(ctx, teams.Mappers()) // mapper.NewEngine, with Options.Mappers
	defer stop()

	run, err := teams.Start(ctx, engine, mapper.Query{Kind: "Team"}, mapper.NoParams{},
		&export.StartOptions{Folder: "teams/2026-11-25"})
	check(err)
	manifest, err := run.Wait(ctx)
	check(err)
	for _, f := range manifest.Files {
		fmt.Println(path.Base(f.Name), "has", f.Records, "records")
	}
	// Output: 00001-of-00001.jsonl.gz has 2 records
}
