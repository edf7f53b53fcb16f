package setting_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/setting"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestIn checks that In replaces the names of settings in an error's text, however deep the error
// is wrapped, and leaves users' names unchanged.
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

// TestUp checks that a number is rounded up to three digits.
func TestUp(t *testing.T) {
	for least, want := range map[float64]string{
		0.5: "0.5", 0.3: "0.3", 1.0 / 3: "0.334", 0.000_621_01: "0.000622", 0.999_1: "1",
		999.1: "1000", 12_345: "12400", 0: "0", 1e-9: "0.000000001",
	} {
		if got := setting.Up(least); got != want {
			t.Errorf("%v is rounded up to %s, want %s", least, got, want)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		least := math.Exp(40*rng.Float64() - 20)
		got, err := strconv.ParseFloat(setting.Up(least), 64)
		if err != nil || got < least || got > 1.011*least {
			t.Fatalf("%v is rounded up to %v, %v", least, got, err)
		}
	}
}
