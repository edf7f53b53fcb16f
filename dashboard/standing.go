package dashboard

import (
	"cmp"
	"fmt"
	"math"
	"regexp"
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
// says what to do.
type standing struct {
	Tone string
	Text []piece
	Next string
}

// A piece is a part of a text about a job. If Range, the ID of a range, is set, the part is a link
// to that range's page.
type piece struct{ Text, Range string }

var (
	rangeID     = regexp.MustCompile(`\b(?:range )?([0-9a-f]{32})\b`)
	rangePrefix = regexp.MustCompile(`\brange [0-9a-f]{32}: `)
)

// pieces splits a text about a job at the IDs of ranges, so that they become links. It removes the
// prefix with the job's ID.
func pieces(job, text string) (all []piece) {
	text = strings.ReplaceAll(text, "job "+job+": ", "")
	for {
		at := rangeID.FindStringSubmatchIndex(text)
		if at == nil {
			return append(all, piece{Text: text})
		}
		all = append(all, piece{Text: text[:at[0]]}, piece{"range " + text[at[2]:at[2]+8], text[at[2]:at[3]]})
		text = text[at[1]:]
	}
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
		next = "It can't be resumed. To process the rest, start a new job."
		if s.Written > 0 && s.UndoneBy == "" && !s.CleanedUp && !s.CleaningUp {
			next += " Undo restores what it changed."
		}
	case mapper.StateSucceeded, mapper.StateSucceededWithFailures, mapper.StateFailed:
	}
	if s.UndoneBy != "" {
		var undo string
		tone, undo, next = undoing(s)
		text = strings.TrimSuffix(text, ".") + ". " + undo
	}
	return standing{tone, pieces(s.ID, strings.TrimSuffix(text, ".")), next}
}

// undoing returns the standing of a job that is being undone, or was undone.
func undoing(s *status) (tone, text, next string) {
	undo := s.Undo
	switch {
	case undo == nil:
		return held, "The job " + s.UndoneBy + " undoes it, or has undone it",
			"Whether that job has ended, and what it restored, is on its page."
	case !undo.State.Ended():
		return held, fmt.Sprintf("The job %s undoes it, and is %s: %s", s.UndoneBy,
			operator.PhaseOf(undo.State, undo.Phase), operator.Percent(undo.Progress)), "Wait for its end."
	case undo.State == mapper.StateFailed || undo.State == mapper.StateAborted:
		became := map[bool]string{true: "has failed", false: "was aborted"}[undo.State == mapper.StateFailed]
		return trial, "The job " + s.UndoneBy + ", which undoes it, " + became,
			"Some of the entities may be restored. See that job."
	}
	tone, next = good, nothingToDo
	if undo.Counters["left"] > 0 || undo.Failures > 0 {
		tone, next = held, "See which entities were left unchanged, and why."
	}
	return tone, "Undone by the job " + s.UndoneBy + ": " + operator.Undone(undo), next
}

// paused returns the standing of a paused job: the tone, the text, and what to do next.
func paused(s *status, history []mapper.HistoryEntry) (tone, text, next string) {
	switch s.Phase {
	case mapper.PhaseOverBudget:
		return held, sentence(s.Phase) + ": " + s.Error, "Set a budget that is enough, and resume it: " +
			operator.Needs(s.Status) + ". If you only resume it, it may spend the same amount again."
	case mapper.PhaseTooManyFailures:
		return trial, sentence(s.Phase) + ": " + s.Error,
			"See the failures. When their cause is mended, resume the job and retry them."
	case mapper.PhaseDraining:
		_, more, _ := strings.Cut(s.Bottleneck, "; ")
		why := cmp.Or(s.Error, "paused"+actor(history, mapper.StatePaused))
		return held, sentence(s.Phase) + ": " + why + "; " + more, "Wait before you change what the function uses. " +
			"Resume it to continue, or abort it."
	case mapper.PhasePaused, mapper.PhaseStarting, mapper.PhaseProcessing, mapper.PhaseQueued,
		mapper.PhaseRateLimited, mapper.PhaseGivingWay, mapper.PhaseSlowed, mapper.PhaseRetrying, mapper.PhaseStuck,
		mapper.PhaseFinishing, mapper.PhaseEnded:
	}
	return held, "Paused" + actor(history, mapper.StatePaused), "Resume it to continue, or abort it."
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
	if s.Failures > 0 {
		text += ". It has " + operator.Counted(s.Failures, "failure", "failures")
		if limit := s.Settings.FailureLimit; limit > 0 {
			text += fmt.Sprintf("; above %s it pauses", operator.Grouped(int64(limit)))
		}
		if tone == good {
			tone = held
		}
		if next == nothingToDo {
			next = "See their causes below. Leave them if they are expected. Otherwise mend the cause, and then " +
				"retry them. A pause stops more."
		}
	}
	return tone, text, next
}

const nothingToDo = "Nothing to do."

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
			"Nothing to do if the other jobs may come first. Otherwise pause one of them."
	case mapper.PhaseStarting:
		if why == "" && now.Sub(s.Created) < 10*time.Second {
			return good, with("no page is done yet"), nothingToDo
		}
		return held, with(cmp.Or(why, "no page is done yet, and it was started "+operator.Ago(s.Created, now))),
			"Nothing to do unless this lasts: its first pages may take that long."
	case mapper.PhaseRateLimited:
		return good, text + " at " + rate + ": " + why, "Nothing to do, or set another rate limit."
	case mapper.PhaseGivingWay:
		return good, text + " at " + rate + ": " + why,
			"Nothing to do. It becomes faster when the database has more capacity to spare."
	case mapper.PhaseSlowed:
		return held, with(why), "Look at the service that the function calls, and at the slowest ranges below. A " +
			"pause relieves the service."
	case mapper.PhaseRetrying:
		return held, with(why), "Nothing to do: they are tried again when they are due."
	case mapper.PhaseStuck:
		return trial, with(why), "Mend the cause. What is done stays done."
	case mapper.PhaseFinishing:
		return good, with(why), nothingToDo
	case mapper.PhaseProcessing, mapper.PhaseDraining, mapper.PhasePaused, mapper.PhaseOverBudget,
		mapper.PhaseTooManyFailures, mapper.PhaseEnded:
	}
	switch {
	case s.Error != "":
		return held, text + " at " + rate + ", with trouble: " + s.Error,
			"It continues when the cause is gone. If that lasts, pause it or lower its rate."
	case s.Bottleneck != "":
		return good, text + " at " + rate + ": " + s.Bottleneck, "Nothing to do, or set another rate limit."
	}
	return good, text + " at " + rate, nothingToDo
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
			"Mend the cause, then resume it: what is done stays done. Or abort it."
	case operator.Undoes(s.Status):
		return undone(s)
	case s.Failures > 0:
		return trial, fmt.Sprintf("Succeeded with failures%s: %s of %s failed", took, operator.Grouped(s.Failures),
			operator.Counted(s.Processed+s.Failures, "entity", "entities")), afterFailures(s)
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
		return "Nothing to do: its records were cleaned up, so the failures can't be retried."
	}
	next := "If you accept them, nothing is left to do: the job has ended, and the failed entities are unchanged. " +
		"Otherwise see their causes, mend them, and retry the failures."
	if s.Written > 0 && s.UndoneBy == "" && !strings.Contains(s.Mapper, ":") {
		next += " Undo restores what the job has changed."
	}
	if s.CleanUpAt.IsZero() {
		next += " Its records stay until they are cleaned up."
	}
	return next
}

// undone returns the standing of an undo that has ended. If the undo has restored no entity, the
// text does not call it a success.
func undone(s *status) (tone, text, next string) {
	text = sentence(mapper.Phase(s.State)) + ": " + operator.Undone(s.Status)
	left, back := s.Counters["left"], s.Counters["restored"]+s.Counters["removed"]
	rehearsal := strings.HasPrefix(s.Mapper, "rehearsal:")
	switch {
	case left > 0 && back == 0 && !rehearsal:
		return trial, sentence(mapper.Phase(s.State)) + ", but nothing was restored: " + operator.Undone(s.Status),
			"See which entities were left unchanged, and why."
	case left > 0:
		return held, text, "See which entities were left unchanged, and why."
	case rehearsal:
		return good, text, "To restore them, undo the job itself."
	}
	return good, text, nothingToDo
}
