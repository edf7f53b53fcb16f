package setting_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/setting"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestIn checks that an error names settings as its reader does, at any depth of wrapping, and
// leaves users' names unchanged.
func TestIn(t *testing.T) {
	t.Parallel()
	errBad := errors.New("bad arguments")
	user := "StartOptions.PageSize 5%d"
	inner := setting.Errorf("%w: StartOptions.PageSize of %q has to be 100%%, %s too", errBad, user,
		setting.Name("StartOptions.Rate.Ramp"))
	for name, err := range map[string]error{
		"plain":   inner,
		"wrapped": fmt.Errorf("mapper: start: %w", fmt.Errorf("a job of %q: %w", user, inner)),
		"joined":  errors.Join(errors.New(user), inner, inner),
		"two":     fmt.Errorf("%w, and %w", errBad, inner),
		"renamed": setting.Renamed(setting.Renamed(setting.Errorf("StartOptions.PageSize of %q, %s: %w", user,
			setting.Name("StartOptions.Rate.Ramp"), errBad), "StartOptions.", "UndoOptions."), "UndoOptions.",
			"StartOptions."),
		"again": setting.Errorf("Query.Kind %q: %w", "Query.Kind", inner),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			call := func(n setting.Name) string { return "<" + strings.ToLower(string(n)) + "%d>" }
			got := setting.In(err, call)
			want := strings.NewReplacer(`StartOptions.PageSize of "S`, `<startoptions.pagesize%d> of "S`,
				"StartOptions.Rate.Ramp", "<startoptions.rate.ramp%d>").Replace(err.Error())
			want = strings.Replace(want, `Query.Kind "`, `<query.kind%d> "`, 1)
			if got != want || !errors.Is(err, errBad) {
				t.Errorf("it says %q, want %q", got, want)
			}
		})
	}
}
