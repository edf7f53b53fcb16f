package operator

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
)

// Grouped returns a number with commas between groups of three digits, such as "12,000".
func Grouped(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Counted returns a number and a noun, such as "1 job" or "2 jobs".
func Counted(n int64, one, several string) string {
	if n == 1 {
		return "1 " + one
	}
	return Grouped(n) + " " + several
}

// Ago returns the time between t and now as a text, such as "5 min ago".
func Ago(t, now time.Time) string {
	d := now.Sub(t)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s ago", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min ago", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h ago", int(d.Hours()))
	}
	return fmt.Sprintf("%d days ago", int(d.Hours()/24))
}

// Line returns a text of unknown origin as one line of at most the given number of characters. It
// replaces control characters, which could change a terminal, by spaces.
func Line(s string, most int) string {
	clean := strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 || r == 0x200e || r == 0x200f || r >= 0x2028 && r <= 0x202e ||
			r >= 0x2066 && r <= 0x2069 {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if runes := []rune(clean); len(runes) > most {
		return string(runes[:most-1]) + "…"
	}
	return clean
}

// Number returns a number as text, or "not known" for -1.
func Number(n int64) string {
	if n < 0 {
		return "not known"
	}
	return Grouped(n)
}

// Within returns a number as text, followed by its bounds if they are different.
func Within(n int64, b mapper.Bounds) string {
	switch {
	case n < 0 || b.Min == b.Max:
		return Number(n)
	case b.Max < 0:
		return fmt.Sprintf("about %s, at least %s", Grouped(n), Grouped(b.Min))
	}
	return fmt.Sprintf("about %s, between %s and %s", Grouped(n), Grouped(b.Min), Grouped(b.Max))
}

// Standing returns a job's state as the command line and the dashboard show it. If the job's phase
// is more detailed than the state, the phase follows, as in "running, slowed". A queued job is only
// "queued", because nothing of it runs.
func Standing(state mapper.State, phase mapper.Phase) string {
	more := PhaseOf(state, phase)
	if more == string(state) || phase == mapper.PhaseQueued {
		return more
	}
	return string(state) + ", " + more
}

// PhaseOf returns a job's phase as a text, or the state if the phase is not more detailed.
func PhaseOf(state mapper.State, phase mapper.Phase) string {
	switch phase {
	case "", mapper.PhaseProcessing, mapper.PhasePaused, mapper.PhaseEnded:
		return string(state)
	case mapper.PhaseStarting, mapper.PhaseQueued, mapper.PhaseRateLimited, mapper.PhaseRetrying,
		mapper.PhaseGivingWay, mapper.PhaseSlowed, mapper.PhaseStuck, mapper.PhaseFinishing,
		mapper.PhaseDraining, mapper.PhaseOverBudget, mapper.PhaseTooManyFailures:
	}
	return string(phase)
}

// Costs returns a text that says what a job has cost so far, and what it is expected to cost in
// total.
func Costs(job *mapper.Status) string {
	text := fmt.Sprintf("about $%.4f", job.Dollars)
	switch {
	case job.State.Ended():
		return text
	case job.DollarsTotal < 0:
		return text + " so far"
	}
	return fmt.Sprintf("%s so far, about $%.4f at its end", text, job.DollarsTotal)
}

// Needs returns a text that says what the rest of a job is expected to cost.
func Needs(job *mapper.Status) string {
	if job.DollarsTotal < 0 {
		return "how much it needs to finish is not known"
	}
	return fmt.Sprintf("to finish, it needs about $%.4f more", job.DollarsTotal-job.Dollars)
}

// BudgetOf returns a budget as text, or "" if there is none.
func BudgetOf(b mapper.Budget) string {
	var parts []string
	if b.Dollars > 0 {
		parts = append(parts, setting.Dollars(b.Dollars))
	}
	if b.Operations > 0 {
		parts = append(parts, Counted(b.Operations, "operation", "operations"))
	}
	return strings.Join(parts, " and ")
}

// Percent returns a job's progress as a text, in percent and with its bounds.
func Percent(p mapper.Progress) string {
	if p.Fraction == 0 && p.FractionMin == 0 && p.FractionMax == 1 {
		return "not known"
	}
	text := fmt.Sprintf("%.0f%%", 100*p.Fraction)
	if p.FractionMax-p.FractionMin > 0.01 {
		text += fmt.Sprintf(", between %.0f%% and %.0f%%", math.Floor(100*p.FractionMin), math.Ceil(100*p.FractionMax))
	}
	return text
}

// Takes returns a text with the time until a job ends, and its bounds. If others slow the job, there
// is no upper bound, and the text says how long the job takes at its present speed.
func Takes(p mapper.Progress, phase mapper.Phase) string {
	slowed := phase == mapper.PhaseSlowed || phase == mapper.PhaseGivingWay
	switch least := Roughly(p.TimeLeftMin); {
	case p.TimeLeftMax < 0 && slowed && p.EntitiesPerSecond > 0 && p.TimeLeft > 0:
		return "about " + Roughly(p.TimeLeft) + " at the present speed"
	case p.TimeLeftMax < 0 && p.TimeLeftMin <= 0:
		return "not known"
	case p.TimeLeftMax < 0: // without an upper bound, the estimate says nothing
		return least + " or more"
	case least == Roughly(p.TimeLeftMax):
		return "about " + Roughly(p.TimeLeft)
	}
	return fmt.Sprintf("about %s, between %s and %s", Roughly(p.TimeLeft), Roughly(p.TimeLeftMin),
		Roughly(p.TimeLeftMax))
}

// Roughly returns a duration as a text, rounded to about two digits.
func Roughly(d time.Duration) string {
	switch {
	case d < 100*time.Second:
		return fmt.Sprintf("%d s", int(math.Round(d.Seconds())))
	case d < 100*time.Minute:
		return fmt.Sprintf("%d min", int(math.Round(d.Minutes())))
	case d < 72*time.Hour:
		return fmt.Sprintf("%d h", int(math.Round(d.Hours())))
	}
	return fmt.Sprintf("%d days", int(math.Round(d.Hours()/24)))
}

// Sized returns the estimated number of a query's entities as a text. If the number is a lower
// bound, the text says "at least".
func Sized(est *mapper.Estimate) string {
	size := "about "
	switch {
	case est.Exact:
		size = ""
	case est.LowerBound:
		size = "at least "
	}
	return size + Grouped(est.Entities)
}

// Undoes reports whether a job undoes another job, or rehearses an undo.
func Undoes(job *mapper.Status) bool { return strings.Contains(job.Mapper, "undo:") }

// UndoneJob returns the ID of the job that an undo undoes. For a job that is no undo, it returns
// "".
func UndoneJob(s *mapper.Status) string {
	if !Undoes(s) {
		return ""
	}
	var p struct {
		Job string `json:"job"`
	}
	if json.Unmarshal(s.Params, &p) != nil {
		return ""
	}
	return p.Job
}

// Undone describes the result of an undo: how many entities it has restored, deleted and not
// restored.
func Undone(job *mapper.Status) string {
	form := [4]string{"%s restored", ", %s new ones deleted", ", %s not restored", ", %s already as before"}
	if strings.HasPrefix(job.Mapper, "rehearsal:") {
		form = [4]string{"it would restore %s", ", delete %s new ones", ", and not restore %s",
			"; %s are already as before"}
	}
	text := ""
	for i, name := range [4]string{"restored", "removed", "left", "already"} {
		said := Grouped(job.Counters[name])
		if name == "restored" {
			said = Counted(job.Counters[name], "entity", "entities")
		}
		if name == "restored" || name == "left" || job.Counters[name] > 0 {
			text += fmt.Sprintf(form[i], said)
		}
	}
	return text
}

// Over describes the entities that a query selects, such as "Account in all namespaces".
func Over(q mapper.Query) string {
	text := strings.Join(append(slices.Clone(q.Kinds), q.Kind), ", ")
	text = strings.TrimSuffix(text, ", ")
	switch {
	case q.AllNamespaces:
		text += " in all namespaces"
	case len(q.Namespaces) > 3:
		text += fmt.Sprintf(" in %d namespaces", len(q.Namespaces))
	case len(q.Namespaces) > 0:
		text += fmt.Sprintf(" in the namespaces %q", q.Namespaces)
	case q.Namespace != "":
		text += fmt.Sprintf(" in the namespace %q", q.Namespace)
	}
	var conditions []string
	for _, f := range q.Filters {
		if f.Op == "share" {
			conditions = append(conditions, fmt.Sprintf("a share of the keys, %v", f.Value))
			continue
		}
		conditions = append(conditions, gql.Path(f.Property)+" "+f.Op+" "+value.Text(f.Value))
	}
	if q.Ancestor != nil {
		conditions = append(conditions, "below "+names.Key(q.Ancestor))
	}
	if q.Start != nil {
		conditions = append(conditions, "from "+names.Key(q.Start))
	}
	if q.End != nil {
		conditions = append(conditions, "before "+names.Key(q.End))
	}
	if len(conditions) > 0 {
		text += " where " + strings.Join(conditions, ", ")
	}
	if q.ShardBy != "" {
		text += ", sharded by " + q.ShardBy
	}
	if !q.ReadTime.IsZero() {
		text += ", as of " + q.ReadTime.UTC().Format(time.RFC3339Nano)
	}
	if q.KeysOnly {
		text += ", keys only"
	}
	return text
}
