package record

import (
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// TestFirstRanges checks the records of a job's first ranges. Together they must cover the query
// without an overlap, and the root's record must have the number of its children.
func TestFirstRanges(t *testing.T) {
	j := &Job{ID: "j", PageSize: 50}
	j.Incarnate(7)
	if root, children := (First{}).Ranges(j); root.Given != 0 || root.Cut || len(children) > 0 || root.End != nil {
		t.Errorf("nothing is known: %+v, %v", root, children)
	}
	at := keyspace.At(datastore.IDKey("K", 5, nil))
	own, rest := split.Piece{End: at, Estimate: 5, Workers: 1}, split.Piece{Start: at, Estimate: 9, Workers: 1}
	root, children := First{Pieces: []split.Piece{own, rest}, EntitySize: 77}.Ranges(j)
	if root.ID != j.Root() || !root.Cut || root.Given != 1 || root.Children != 1 || len(children) != 1 ||
		!root.End.Equal(at) || root.Estimate != 5 {
		t.Fatalf("%+v, %v", root, children)
	}
	child := children[0]
	if !child.Start.Equal(at) || child.End != nil || child.Estimate != 9 || child.PageSize != 50 ||
		child.EntitySize != 77 || child.ID != root.FirstChildren()[0].ID {
		t.Errorf("%+v, want the child %+v", child, root.FirstChildren()[0])
	}
}

// TestEndsAtOnce checks which jobs can be ended by a single write of their record.
func TestEndsAtOnce(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*Job)
		want   bool
	}{
		{"it runs", func(*Job) {}, true},
		{"its version is unknown", func(j *Job) { j.Version = 0 }, false},
		{"it is paused", func(j *Job) { j.State = Paused }, false},
		{"its failures are opened", func(j *Job) { j.Retrying = true }, false},
		{"it has a draft", func(j *Job) { j.Drafted = true }, false},
		{"it deletes its records", func(j *Job) { j.Closing = []byte("{}") }, false},
	} {
		j := &Job{ID: "j", State: Running, Version: 3}
		test.change(j)
		if got := j.EndsAtOnce(); got != test.want {
			t.Errorf("%s: %t, want %t", test.name, got, test.want)
		}
	}
}
