package export

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// TestPageSizes checks the number of entities in a page: by default up to 1,000 if files are large,
// or what the caller sets.
func TestPageSizes(t *testing.T) {
	small := define(t, Options{FileBytes: largePages - 1})
	mappertest.Run(t, small.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.IDKey("Number", 1, nil), &numbered{1}); err != nil {
			t.Fatal(err)
		}
		size := func(x *Export[mapper.NoParams], given int) int {
			t.Helper()
			run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Number"}, mapper.NoParams{},
				&StartOptions{StartOptions: mapper.StartOptions{PageSize: given}})
			if err != nil {
				t.Fatal(err)
			}
			status, err := run.Jobs()[0].Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			return status.Settings.PageSize
		}
		if got := size(small, 0); got != 500 {
			t.Errorf("for small files: %d, want 500", got)
		}
		small.opts.FileBytes = largePages
		if got := size(small, 0); got != 1000 {
			t.Errorf("for large files: %d, want 1,000", got)
		}
		if got := size(small, 7); got != 7 {
			t.Errorf("as the caller says: %d, want 7", got)
		}
	})
}

// A moody value has a MarshalJSON that sometimes fails.
type moody struct{}

var mood atomic.Bool

func (moody) MarshalJSON() ([]byte, error) {
	if mood.Load() {
		return nil, errors.New("not today")
	}
	return []byte("{}"), nil
}
func (*moody) UnmarshalJSON([]byte) error { return nil }

// TestParamsWithoutJSON runs an export whose parameters can't be encoded as JSON when its first
// stage ends. The export must fail, and not write files without the parameters.
func TestParamsWithoutJSON(t *testing.T) {
	mood.Store(false)
	b := testbucket.New()
	x, err := New("moods", b.Open(), func(context.Context, *mapper.Entity[numbered], moody) (numbered, error) {
		mood.Store(true)
		return numbered{1}, nil
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.IDKey("Number", 1, nil), &numbered{1}); err != nil {
			t.Fatal(err)
		}
		run, err := x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Number"}, moody{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if m, err := run.Wait(t.Context()); err == nil || !strings.Contains(err.Error(), "not today") {
			t.Errorf("%+v, %v, want the error", m, err)
		}
	})
}
