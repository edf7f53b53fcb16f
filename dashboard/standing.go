package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// Values of standing.Tone. They decide the colour of the text about a job's state.
const (
	good  = "good"  // the operator need not act
	held  = "held"  // the job makes less progress than it could make
	trial = "trial" // the operator has to act
)

// A standing tells the operator how a job is doing. Text has the state and its reason, and Next
// says what to do. Next calls buttons by their labels.
type standing struct {
	Tone string
	Text []piece
	Next string
}

// A piece is a part of a text about a job. If Range, the ID of a range, is set, the part is a link
// to that range's page. If Job is set, it is a link to the page of the job with this ID.
type piece struct{ Text, Range, Job string }

var (
	rangeID     = regexp.MustCompile(`\b(?:range )?([0-9a-f]{32})\b`)
	rangePrefix = regexp.MustCompile(`\brange [0-9a-f]{32}: `)
	word        = regexp.MustCompile(`[^\s,.:]+`)
)

// pieces splits a text about a job at the IDs of ranges, and at the given IDs of other jobs, so
// that they become links. It removes the prefix with the job's ID.
func pieces(job, text string, others ...string) (all []piece) {
	text = strings.ReplaceAll(text, "job "+job+": ", "")
	for {
		at := rangeID.FindStringSubmatchIndex(text)
		if at == nil {
			return append(all, linked(text, others)...)
		}
		all = append(all, linked(text[:at[0]], others)...)
		all = append(all, piece{Text: "range " + text[at[2]:at[2]+8], Range: text[at[2]:at[3]]})
		text = text[at[1]:]
	}
}

// linked splits a text at the IDs of jobs. An ID is a whole word without quotes.
func linked(text string, ids []string) (all []piece) {
	from := 0
	for _, at := range word.FindAllStringIndex(text, -1) {
		if id := text[at[0]:at[1]]; slices.Contains(ids, id) {
			all = append(all, piece{Text: text[from:at[0]]}, piece{Text: id, Job: id})
			from = at[1]
		}
	}
	return append(all, piece{Text: text[from:]})
}

// standingOf returns the standing of a job, from its redacted status. The text starts with the
// job's phase or state: see [operator.PhaseOf]. The history tells who stopped the job.
func standingOf(s *status, history []mapper.HistoryEntry, now time.Time) standing {
	tone, text, next := ended(s)
	switch s.State {
	case mapper.StateRunning:
		tone, text, next = running(s, now)
	case mapper.StatePaused:
		tone, text, next = paused(s, history)
	case mapper.StateAborted:
		tone, text = held, "Aborted"+actor(history, mapper.StateAborted)
		next = "To process the rest, start a new job. This one can't be resumed."
		if s.Written > 0 && s.UndoneBy == "" && !s.CleanedUp && !s.CleaningUp {
			next += " To restore what it changed, press Undo."
		}
	case mapper.StateSucceeded, mapper.StateSucceededWithFailures, mapper.StateFailed:
	}
	if s.UndoneBy != "" {
		before := strings.TrimSuffix(text, ".") + ". "
		if tone, text, next = undoing(s); s.Undone() == "" {
			text = before + text
		}
	}
	return standing{tone, pieces(s.ID, causeFirst(strings.TrimSuffix(text, ".")), slices.Concat(s.SharesQueue,
		[]string{s.UndoneBy})...), next}
}

// causeFirst moves the ID of the range from the start of an error to the end of the text.
func causeFirst(text string) string {
	at := rangePrefix.FindStringIndex(text)
	if at == nil {
		return text
	}
	return text[:at[0]] + text[at[1]:] + " (" + strings.TrimSuffix(text[at[0]:at[1]], ": ") + ")"
}

// undoing returns the standing of a job that is being undone, or was undone.
func undoing(s *status) (tone, text, next string) {
	undo := s.Undo
	switch {
	case undo == nil:
		return held, "The job " + s.UndoneBy + " undoes it, or has undone it",
			"See the page of that job: it says what was restored."
	case !undo.State.Ended():
		return held, fmt.Sprintf("Being undone by the job %s, which is %s: %s", s.UndoneBy,
			operator.PhaseOf(undo.State, undo.Phase), operator.Percent(undo.Progress)), "Wait until the undo has ended."
	case undo.State == mapper.StateFailed || undo.State == mapper.StateAborted:
		return trial, "The job " + s.UndoneBy + ", which undoes it, " + undidNot(undo),
			"See the page of the undo. It may have restored some of the entities."
	}
	tone, text, next = undone(undo)
	_, text, _ = strings.Cut(text, ": ")
	return tone, sentence(mapper.Phase(s.Undone())) + " by the job " + s.UndoneBy + ": " + text + worst(s), next
}

// undidNot says what has become of an undo that has failed or was aborted.
func undidNot(undo *mapper.Status) string {
	return map[bool]string{true: "has failed", false: "was aborted"}[undo.State == mapper.StateFailed]
}

// paused returns the standing of a paused job: the tone, the text, and what to do next.
func paused(s *status, history []mapper.HistoryEntry) (tone, text, next string) {
	switch s.Phase {
	case mapper.PhaseOverBudget:
		text, next = overBudget(s)
		return held, text, next
	case mapper.PhaseTooManyFailures:
		return trial, sentence(s.Phase) + ": " + s.Error,
			"See the failures, and mend their cause. Then press Resume, and Retry failures."
	case mapper.PhaseDraining:
		_, more, _ := strings.Cut(s.Bottleneck, "; ")
		why := cmp.Or(s.Error, "paused"+actor(history, mapper.StatePaused))
		next = resumeOrAbort
		if s.OverBudget() {
			why, _, _ = spent(s)
			_, next = overBudget(s)
		}
		return held, sentence(s.Phase) + ": " + why + "; " + more, "Wait before you change what the function uses. " +
			next
	case mapper.PhasePaused, mapper.PhaseStarting, mapper.PhaseProcessing, mapper.PhaseQueued,
		mapper.PhaseRateLimited, mapper.PhaseGivingWay, mapper.PhaseSlowed, mapper.PhaseRetrying, mapper.PhaseStuck,
		mapper.PhaseFinishing, mapper.PhaseEnded:
	}
	return held, "Paused" + actor(history, mapper.StatePaused), resumeOrAbort
}

const resumeOrAbort = "To continue, press Resume. To give up, press Abort."

// overBudget returns the standing of a job that its budget has paused: the text, and what to do
// next.
func overBudget(s *status) (text, next string) {
	paused, now, raised := spent(s)
	text = fmt.Sprintf("%s: %s, at %s", sentence(s.Phase), paused, operator.Percent(s.Progress))
	rest := ""
	if s.DollarsTotal >= 0 {
		rest = dollars(s.DollarsTotal - s.Dollars)
	}
	switch {
	case raised:
		return text, "To continue with its new budget, " + now + ", press Resume."
	case !s.Short():
		return text, "To continue, press Resume. This allows " + now + " once more, and the rest may cost " + rest + "."
	case rest != "":
		next = " for the rest, which may cost " + rest
	}
	return text, "Enter a new budget below" + next + ". Press Set budget, and then Resume."
}

// NextBudget returns the budget in dollars that the form for a new budget has at first, as text. If
// a budget has paused the job, that is enough for the rest, with a margin of at least a quarter.
// Otherwise it is the present budget.
func (s *status) NextBudget() string {
	dollars := s.Settings.Budget.Dollars
	if s.Short() && s.DollarsTotal > s.Dollars {
		need := (s.DollarsTotal - s.Dollars) * 1.25
		unit := math.Pow(10, math.Floor(math.Log10(need))-1) // two digits are enough
		rounded, err := strconv.ParseFloat(strconv.FormatFloat(math.Ceil(need/unit)*unit, 'g', 2, 64), 64)
		if err == nil {
			dollars = max(dollars, rounded)
		}
	}
	if dollars == 0 {
		return ""
	}
	return strconv.FormatFloat(dollars, 'f', -1, 64)
}

// spent returns the error of a job that its budget has paused, without details. It also returns the
// job's budget, and whether that was changed after the pause.
func spent(s *status) (paused, now string, changed bool) {
	paused, _, _ = strings.Cut(s.Error, ": ") // the rest is in the history
	full, _, _ := strings.Cut(s.Status.Error, ": ")
	now = operator.BudgetOf(s.Settings.Budget)
	return paused, cmp.Or(now, "no limit"), !strings.HasSuffix(full, " "+strings.ReplaceAll(now, ",", ""))
}

// OverBudget reports whether a budget has paused the job.
func (s *status) OverBudget() bool {
	return s.Phase == mapper.PhaseOverBudget ||
		s.Phase == mapper.PhaseDraining && strings.HasPrefix(s.Status.Error, "paused by its budget ")
}

// Short reports whether a budget has paused the job, and would probably pause it again after a
// Resume, which allows the same amount once more.
func (s *status) Short() bool {
	if !s.OverBudget() {
		return false
	}
	b := s.Settings.Budget
	_, _, changed := spent(s)
	return !changed && (b.Operations > 0 || s.DollarsTotal < 0 || s.DollarsTotal-s.Dollars > b.Dollars)
}

// sentence returns a phase with a capital letter, as the start of a sentence.
func sentence(p mapper.Phase) string { return strings.ToUpper(string(p[:1])) + string(p[1:]) }

// actor returns a text that says who brought a job into a state, and why. It returns "" if the
// history does not say so.
func actor(history []mapper.HistoryEntry, state mapper.State) (text string) {
	if len(history) == 0 || history[len(history)-1].State != state {
		return ""
	}
	last := history[len(history)-1]
	if last.By != "" {
		text = " by " + last.By
	}
	if last.Reason != "" {
		text += ": " + last.Reason
	}
	return text
}

// running returns the standing of a running job: the tone, the text, and what to do next.
func running(s *status, now time.Time) (tone, text, next string) {
	rate := operator.Grouped(int64(math.Round(s.Progress.EntitiesPerSecond))) + " entities/s"
	tone, text, next = phaseOf(s, rate, now)
	if s.Failures == 0 {
		return tone, text, next
	}
	text += ". " + operator.Counted(s.Failures, "entity", "entities") + " failed"
	text += worst(s)
	if limit := s.Settings.FailureLimit; limit > 0 {
		text += fmt.Sprintf(". Above %s the job pauses", operator.Counted(int64(limit), "failure", "failures"))
	}
	if tone == good {
		tone = held
	}
	if next == nothingToDo {
		next = "If you expect these failures, nothing. Otherwise press Pause, mend the cause, and press Resume. " +
			"Then press Retry failures."
	}
	return tone, text, next
}

const nothingToDo = "Nothing."

// phaseOf returns the standing of a running job according to its phase. The text starts with the
// phase. The parameter rate is the job's speed in words.
func phaseOf(s *status, rate string, now time.Time) (tone, text, next string) {
	why := cmp.Or(s.Bottleneck, s.Error)
	text = sentence(mapper.Phase(operator.PhaseOf(s.State, s.Phase)))
	with := func(more string) string {
		if more == "" {
			return text
		}
		return text + ": " + more
	}
	switch s.Phase {
	case mapper.PhaseQueued:
		return held, with(cmp.Or(why, "its tasks wait in their queue")),
			"Wait until the queue delivers its tasks. To let this job go first, pause the other jobs of the queue."
	case mapper.PhaseStarting:
		if why == "" && now.Sub(s.Created) < 10*time.Second {
			return good, with("no page is done yet"), nothingToDo
		}
		return held, with(cmp.Or(why, "no page is done yet, and it was started "+operator.Ago(s.Created, now))),
			"Wait: its first pages may take that long. If it lasts, see the log."
	case mapper.PhaseRateLimited:
		return good, text + " at " + rate + left(s) + ": " + why,
			"Nothing. To make it faster, raise its rate limit below."
	case mapper.PhaseGivingWay:
		return good, text + " at " + rate + ": " + why,
			"Nothing. It becomes faster when the database has more capacity to spare."
	case mapper.PhaseSlowed:
		next = "Check the service that the function calls. If the job overloads it, press Pause, or set a rate limit." +
			" The job becomes faster when the service does."
		if strings.Contains(why, "refuses most calls") {
			next = "Set a rate limit that the service accepts, or press Pause. Refused calls are made again, and " +
				"count as no failures."
		}
		return held, with(why), next
	case mapper.PhaseRetrying:
		return held, with(why), "Wait: the next attempt starts when it is due. If the cause lasts, mend it."
	case mapper.PhaseStuck:
		return trial, with(why), "Mend the cause, and the job continues. What is done stays done."
	case mapper.PhaseFinishing:
		return good, with(why), nothingToDo
	case mapper.PhaseProcessing, mapper.PhaseDraining, mapper.PhasePaused, mapper.PhaseOverBudget,
		mapper.PhaseTooManyFailures, mapper.PhaseEnded:
	}
	switch {
	case s.Error != "":
		return held, text + " at " + rate + ", with trouble: " + s.Error,
			"Mend the cause, and the job continues. If it harms others, press Pause, or set a rate limit."
	case s.Bottleneck != "":
		return good, text + " at " + rate + left(s) + ": " + s.Bottleneck, nothingToDo
	}
	return good, text + " at " + rate + left(s), nothingToDo
}

// worst returns a text with an error that has the cause of most failures, or "" if none is known.
func worst(s *status) string {
	if s.Worst == "" {
		return ""
	}
	return ". Example: " + strings.TrimSuffix(s.Worst, ".")
}

// left returns a text with the time until the job ends, or "" if it is not known.
func left(s *status) string {
	if s.Progress.TimeLeft <= 0 || s.Progress.TimeLeftMax < 0 {
		return ""
	}
	return ", about " + operator.Roughly(s.Progress.TimeLeft) + " left"
}

// ended returns the standing of a job that has ended and was not aborted.
func ended(s *status) (tone, text, next string) {
	took := ""
	if !s.Ended.IsZero() {
		took = " in " + span(s.Ended.Sub(s.Created))
	}
	switch {
	case s.State == mapper.StateFailed:
		return trial, "Failed: " + cmp.Or(s.Error, "no cause is recorded"),
			"Mend the cause, then press Resume: what is done stays done. To give up, press Abort."
	case operator.Undoes(s.Status):
		tone, text, next = undone(s.Status)
		return tone, text + worst(s), next
	case s.Failures > 0:
		return trial, fmt.Sprintf("Succeeded with failures%s: %s of %s failed", took, operator.Grouped(s.Failures),
			operator.Counted(s.Processed+s.Failures, "entity", "entities")) + worst(s), afterFailures(s)
	case strings.HasPrefix(s.Mapper, "rehearsal:"):
		return good, fmt.Sprintf("Succeeded%s: the rehearsal would write %s of %s, and wrote nothing", took,
			operator.Grouped(s.Written), operator.Counted(s.Processed, "entity", "entities")), "See the preview."
	}
	return good, fmt.Sprintf("Succeeded%s: %s processed", took, operator.Counted(s.Processed, "entity", "entities")),
		nothingToDo
}

// afterFailures returns what the operator can do about the failures of a job that has ended.
func afterFailures(s *status) string {
	if s.CleanedUp || s.CleaningUp {
		return "Nothing. Its records were cleaned up, so the failures can't be retried."
	}
	next := "If you accept the failures, nothing. Otherwise mend the cause, and press Retry failures."
	if s.Written > 0 && s.UndoneBy == "" && !strings.Contains(s.Mapper, ":") {
		next += " To restore what the job has changed, press Undo."
	}
	return next
}

// undone returns the standing of an undo that has ended. If the undo has restored no entity, the
// text does not call it a success.
func undone(s *mapper.Status) (tone, text, next string) {
	text = sentence(mapper.Phase(s.State)) + ": " + operator.Undone(s)
	rehearsal := strings.HasPrefix(s.Mapper, "rehearsal:")
	switch left := s.Counters["left"]; {
	case restoredNothing(s) && !rehearsal:
		return trial, fmt.Sprintf("%s, but nothing was restored: %s left unchanged", sentence(mapper.Phase(s.State)),
			operator.Counted(left, "entity was", "entities were")), byHand(s)
	case left > 0:
		return held, text, byHand(s)
	case s.Failures > 0:
		return held, text, "See the failures, and mend their cause. Then press Retry failures."
	case rehearsal:
		return good, text, "To restore them, undo the job itself."
	}
	return good, text, nothingToDo
}

// byHand returns what the operator can do about entities that an undo has left unchanged. After the
// text, the page has a link to their list, unless the list was cleaned up.
func byHand(undo *mapper.Status) string {
	next := "If you need the old values, restore them by hand."
	if undo.CleanedUp || undo.CleaningUp {
		return next + " The list of the entities was cleaned up."
	}
	return next + " All keys and reasons:"
}

// restoredAny reports whether an undo has restored entities, or has found some as before the job.
// An earlier undo that was aborted may have restored these. For nil the result is false.
func restoredAny(undo *mapper.Status) bool {
	return undo != nil && undo.Counters["restored"]+undo.Counters["removed"]+undo.Counters["already"] > 0
}

// restoredNothing reports whether an undo has left entities unchanged, and has restored none.
func restoredNothing(undo *mapper.Status) bool {
	return undo.Counters["left"] > 0 && !restoredAny(undo)
}
