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

// Tones of a standing.
const (
	good  = "good"  // nothing to do
	held  = "held"  // it makes less progress than it could
	trial = "trial" // somebody has to act
)

// A standing says in a line how a job stands and why, and in another what to do.
type standing struct {
	Tone string
	Text []piece
	Next string
}

// A piece is a part of a text, or a range that it names.
type piece struct{ Text, Range string }

var rangeID = regexp.MustCompile(`\b(?:range )?([0-9a-f]{32})\b`)

// pieces returns a text about a job in pieces, without the job's name at its start.
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

// standingOf returns how a job stands, as it may be seen. The last entry of its history says who
// has stopped it.
func standingOf(s *status, history []mapper.HistoryEntry, now time.Time) standing {
	tone, text, next := ended(s)
	switch {
	case s.State == mapper.StateRunning:
		tone, text, next = running(s, now)
	case s.State == mapper.StatePaused && s.Error != "" && actor(history, mapper.StatePaused) == "":
		tone, text, next = trial, "Paused by a limit: "+strings.TrimPrefix(s.Error, "paused by "), limited(s)
	case s.State == mapper.StatePaused:
		tone, text = held, "Paused"+actor(history, mapper.StatePaused)
		next = "Resume it to continue, or abort it."
	case s.State == mapper.StateAborted:
		tone, text = held, "Aborted"+actor(history, mapper.StateAborted)
		next = "It can't be resumed. To process the rest, start a new job."
		if s.Written > 0 && s.UndoneBy == "" && !s.CleanedUp && !s.CleaningUp {
			next += " Undo restores what it changed."
		}
	}
	if s.UndoneBy != "" {
		tone, text = held, "The job "+s.UndoneBy+" undoes it, or has undone it. Before that: "+
			strings.ToLower(text[:1])+text[1:]
		next = "Whether that job has ended, and what it restored, is on its page."
	}
	return standing{tone, pieces(s.ID, strings.TrimSuffix(text, ".")), next}
}

// limited says what to do about a job that a limit has paused.
func limited(s *status) string {
	if !s.Limited && s.Settings.Budget != (mapper.Budget{}) {
		return "Resume it to spend the same amount again, or abort it."
	}
	return "See the failures. When their cause is mended, resume the job and retry them."
}

// actor says who brought a job into a state, when it is known, and why.
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

// running says how a job stands that runs.
func running(s *status, now time.Time) (tone, text, next string) {
	done := s.Processed + s.Failures
	rate := operator.Grouped(int64(math.Round(s.Progress.EntitiesPerSecond)))
	switch {
	case s.Error != "":
		return held, "Running, but held up: " + s.Error,
			"It continues when the cause is gone. If that lasts, pause it or lower its rate."
	case s.Phase == mapper.PhaseQueued:
		return held, "Queued: " + cmp.Or(s.Bottleneck, "its tasks wait in their queue"),
			"Nothing to do if the other jobs may come first. Otherwise pause one of them."
	case done == 0 && s.Bottleneck != "":
		return held, "Running, no page is done yet: " + s.Bottleneck, "Nothing to do unless this lasts."
	case done == 0 && now.Sub(s.Created) < 10*time.Second:
		return good, "Starting: no page is done yet", "Nothing to do."
	case done == 0:
		return held, "Waiting: it started " + operator.Ago(s.Created, now) + ", and no page is done yet",
			"Other jobs in its queue may come first: see the running jobs. Or its first page takes that long."
	case s.Failures > 0:
		text = fmt.Sprintf("Running, with %s", operator.Counted(s.Failures, "failure", "failures"))
		if limit := s.Settings.FailureLimit; limit > 0 {
			text += fmt.Sprintf("; above %s it pauses", operator.Grouped(int64(limit)))
		}
		return trial, text, "See their causes below. Leave them if they are expected. Otherwise mend the cause, and " +
			"then retry them. A pause stops more."
	case s.Phase == mapper.PhaseGivingWay:
		return good, "Running at " + rate + " entities/s: " + s.Bottleneck,
			"Nothing to do. It becomes faster when the database has more capacity to spare."
	case s.Phase == mapper.PhaseSlowed:
		return held, "Running slower than before: " + s.Bottleneck,
			"Look at the service that the function calls, and at the slowest ranges below. A pause relieves the " +
				"service."
	case s.Bottleneck != "":
		return good, "Running at " + rate + " entities/s: " + s.Bottleneck,
			"Nothing to do, or set another rate limit."
	}
	return good, "Running well at " + rate + " entities/s", "Nothing to do."
}

// ended says how a job stands that has ended, and was not aborted.
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
		return trial, fmt.Sprintf("Ended%s, but %s failed, of %s", took,
				operator.Counted(s.Failures, "entity", "entities"), operator.Grouped(s.Processed+s.Failures)),
			"See their causes below. Leave them if they are expected. Otherwise mend the cause, and then retry them."
	case strings.HasPrefix(s.Mapper, "rehearsal:"):
		return good, fmt.Sprintf("Rehearsed%s: it would write %s of %s, and wrote nothing", took,
			operator.Grouped(s.Written), operator.Counted(s.Processed, "entity", "entities")), "See the preview."
	}
	return good, fmt.Sprintf("Succeeded%s: %s processed", took, operator.Counted(s.Processed, "entity", "entities")),
		"Nothing to do."
}

// undone says what an undo has done. An undo that restored nothing is no success for the operator.
func undone(s *status) (tone, text, next string) {
	text = operator.Undone(s.Status)
	text = strings.ToUpper(text[:1]) + text[1:]
	left, back := s.Counters["left"], s.Counters["restored"]+s.Counters["removed"]
	rehearsal := strings.HasPrefix(s.Mapper, "rehearsal:")
	switch {
	case left > 0 && back == 0 && !rehearsal:
		return trial, "Nothing was restored: " + operator.Undone(s.Status),
			"See which entities were left unchanged, and why."
	case left > 0:
		return held, text, "See which entities were left unchanged, and why."
	case rehearsal:
		return good, text, "To restore them, undo the job itself."
	}
	return good, text, "Nothing to do."
}
