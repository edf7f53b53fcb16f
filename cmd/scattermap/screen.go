package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"charm.land/lipgloss/v2"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

// A topJob is a job in the list that the command top shows.
type topJob struct {
	mapper.JobInfo
	status *mapper.Status // nil if the job has ended, or its status was not read
}

// standing returns the text for a job's state. If the job's phase is known and more precise, it
// returns the phase.
func (j *topJob) standing() string {
	if j.status == nil {
		return string(j.State)
	}
	return operator.Standing(j.State, j.status.Phase)
}

// An act is what a key of the command top triggers: an action on a job, such as a request to pause
// it.
type act struct {
	verb string // the action's name in the jobs API; empty: no request is sent
	job  string
	rate mapper.Rate
}

// A screen is the state of the command top: the data that it shows, and what the user has typed.
// Its methods make no calls, so tests can run them without a service.
type screen struct {
	address       string
	width, height int

	jobs  []*topJob
	at    time.Time // when the jobs were last read
	err   error     // the error of the last read; nil: it succeeded
	lives bool      // show only jobs that have not ended

	chosen  string // the ID of the chosen job
	first   int    // index in the list of the first job that is visible
	details bool   // whether to show the details of the chosen job
	said    string // the outcome of the last key that the user pressed

	asks  act    // the action that waits for the user's confirmation
	rates string // the ID of the job whose rate the user types; empty: none
	typed string
}

// take replaces the jobs by newly loaded ones, or keeps them and shows the error.
func (s *screen) take(m loadedMsg) {
	if s.err = m.err; m.err != nil {
		return
	}
	s.jobs, s.at = m.jobs, m.at
	slices.SortStableFunc(s.jobs, func(a, b *topJob) int { return cmp.Compare(ended(a), ended(b)) })
	if s.job() == nil {
		s.move(0)
	}
}

func ended(j *topJob) int {
	if j.State.Ended() {
		return 1
	}
	return 0
}

// listed returns the jobs that the list shows.
func (s *screen) listed() []*topJob {
	if !s.lives {
		return s.jobs
	}
	return slices.DeleteFunc(slices.Clone(s.jobs), func(j *topJob) bool { return j.State.Ended() })
}

// job returns the job that the user has chosen, or nil.
func (s *screen) job() *topJob {
	for _, j := range s.listed() {
		if j.ID == s.chosen {
			return j
		}
	}
	return nil
}

// move moves the user's choice in the list. The parameter by is the number of lines down, or up if
// it is negative.
func (s *screen) move(by int) {
	all := s.listed()
	if len(all) == 0 {
		s.chosen, s.first = "", 0
		return
	}
	at := max(0, slices.IndexFunc(all, func(j *topJob) bool { return j.ID == s.chosen }))
	at = min(max(0, at+by), len(all)-1)
	s.chosen = all[at].ID
	s.first = min(s.first, at)
	s.first = max(s.first, at-s.room()+1)
}

// room returns how many jobs fit on the screen.
func (s *screen) room() int { return max(1, s.height-6) }

// verbs has the name of the action that each key triggers. If the name ends with "?", the screen
// first asks for a confirmation.
var verbs = map[string]string{"p": "pause", "r": "resume", "a": "abort?", "t": "retry", "u": "undo?"}

// press handles a key. It returns the act that the key starts, and whether the program quits.
func (s *screen) press(key string) (does act, quits bool) {
	switch {
	case key == "ctrl+c":
		return act{}, true
	case s.rates != "":
		return s.typeRate(key), false
	case s.asks.verb != "":
		if key == "y" {
			does = s.asks
		}
		s.asks, s.said = act{}, ""
		return does, false
	}
	s.said = ""
	switch key {
	case "q":
		return act{}, true
	case "esc":
		if !s.details {
			return act{}, true
		}
		s.details = false
	case "enter", "d":
		s.details = !s.details && s.job() != nil
	case "e":
		s.lives = !s.lives
		s.move(0)
	case "up", "k", "down", "j", "pgup", "pgdown", "home", "end":
		s.move(map[string]int{"up": -1, "k": -1, "down": 1, "j": 1, "pgup": -s.room(), "pgdown": s.room(),
			"home": -len(s.jobs), "end": len(s.jobs)}[key])
	case "s":
		s.rates, s.typed = s.chosen, ""
	default:
		verb, asks := strings.CutSuffix(verbs[key], "?")
		job := s.job()
		switch {
		case verb == "" || job == nil:
		case asks:
			s.asks = act{verb: verb, job: job.ID}
		default:
			return act{verb: verb, job: job.ID}, false
		}
	}
	return act{}, false
}

// typeRate handles a key while the user types a rate. For the Enter key it returns the act that
// sets the rate. For other keys, and if the text is no number, it returns a zero act.
func (s *screen) typeRate(key string) act {
	switch {
	case key == "esc":
		s.rates = ""
	case key == "enter":
		does := act{verb: "rate", job: s.rates}
		s.rates = ""
		n, err := strconv.ParseFloat(s.typed, 64)
		if err != nil {
			s.said = fmt.Sprintf("%q is not a number of entities a second", s.typed)
			return act{}
		}
		for _, j := range s.jobs {
			if j.ID == does.job && j.status != nil { // the rate's other limits stay unchanged
				does.rate = j.status.Settings.Rate
			}
		}
		does.rate.EntitiesPerSecond = n
		return does
	case key == "backspace":
		s.typed = s.typed[:max(0, len(s.typed)-1)]
	case len(key) == 1 && (key == "." || key >= "0" && key <= "9") && len(s.typed) < 12:
		s.typed += key
	}
	return act{}
}

// Styles of texts. They use the terminal's own colours, which suit its background.
var (
	faint    = lipgloss.NewStyle().Faint(true)
	strong   = lipgloss.NewStyle().Bold(true)
	reversed = lipgloss.NewStyle().Reverse(true)

	stateStyles = map[mapper.State]lipgloss.Style{
		mapper.StateRunning:               lipgloss.NewStyle().Foreground(lipgloss.Cyan),
		mapper.StatePaused:                lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		mapper.StateSucceeded:             lipgloss.NewStyle().Foreground(lipgloss.Green),
		mapper.StateSucceededWithFailures: lipgloss.NewStyle().Foreground(lipgloss.Yellow),
		mapper.StateFailed:                lipgloss.NewStyle().Foreground(lipgloss.Red), mapper.StateAborted: faint,
	}
)

// A column is a column of the list. Narrow screens leave out the columns with the highest ranks.
type column struct {
	name  string
	width int // the maximum width of the column
	rank  int
	right bool
	text  func(*topJob) string
}

var columns = []column{
	{"JOB", 40, 0, false, func(j *topJob) string { return j.ID }},
	{"MAPPER", 30, 4, false, func(j *topJob) string { return j.Mapper }},
	{"STATE", 25, 0, false, (*topJob).standing},
	{"PROGRESS", 21, 1, false, progressOf},
	{"RATE", 9, 2, true, func(j *topJob) string {
		if j.status == nil || j.State != mapper.StateRunning {
			return ""
		}
		return operator.Grouped(int64(j.status.Progress.EntitiesPerSecond)) + "/s"
	}},
	{"LEFT", 8, 2, true, func(j *topJob) string {
		if j.status == nil || j.State != mapper.StateRunning || j.status.Progress.TimeLeftMax < 0 {
			return ""
		}
		return operator.Roughly(j.status.Progress.TimeLeft)
	}},
	{"DONE", 12, 3, true, func(j *topJob) string {
		switch {
		case j.status != nil:
			return operator.Grouped(j.status.Processed)
		case j.Counted:
			return operator.Grouped(j.Processed)
		}
		return ""
	}},
	{"FAILED", 7, 1, true, func(j *topJob) string {
		n := j.Failures
		if j.status != nil {
			n = j.status.Failures
		}
		if n <= 0 {
			return ""
		}
		return operator.Grouped(n)
	}},
	{"STARTED", 11, 5, true, func(j *topJob) string { return operator.Ago(j.Created, time.Now()) }},
}

// progressOf returns a job's progress as a bar of characters.
func progressOf(j *topJob) string {
	if j.status == nil || j.State.Ended() {
		return ""
	}
	const cells = 16
	about := min(1, max(0, j.status.Progress.Fraction))
	full := int(about * cells)
	return strings.Repeat("█", full) + strings.Repeat("░", cells-full) + fmt.Sprintf("%4.0f%%", 100*about)
}

// fitting returns the columns that fit into a width together. Each is as wide as its widest text.
func fitting(width int, jobs []*topJob) []column {
	for rank := 5; ; rank-- {
		some := slices.DeleteFunc(slices.Clone(columns), func(c column) bool { return c.rank > rank })
		for i, c := range some {
			widest := lipgloss.Width(c.name)
			for _, j := range jobs {
				widest = max(widest, lipgloss.Width(operator.Line(c.text(j), c.width)))
			}
			some[i].width = widest
		}
		all := 2
		for _, c := range some {
			all += c.width + 2
		}
		if all <= width || rank == 0 {
			return some
		}
	}
}

// cell returns a text, cut or padded to the column's width.
func (c column) cell(text string) string {
	text = operator.Line(text, c.width)
	space := strings.Repeat(" ", max(0, c.width-lipgloss.Width(text)))
	if c.right {
		return space + text + "  "
	}
	return text + space + "  "
}

// draw returns the whole screen as a text.
func (s *screen) draw() string {
	head := strong.Render("scattermap top") + "  " + operator.Line(s.address, max(1, s.width-40))
	counts := make(map[mapper.State]int)
	for _, j := range s.jobs {
		counts[j.State]++
	}
	head += faint.Render(fmt.Sprintf("  %d running, %d paused, %d failed", counts[mapper.StateRunning],
		counts[mapper.StatePaused], counts[mapper.StateFailed]))
	lines := []string{head, ""}
	if job := s.job(); s.details && job != nil {
		lines = append(lines, s.detail(job)...)
	} else {
		lines = append(lines, s.list()...)
	}
	for len(lines) < s.height-3 {
		lines = append(lines, "")
	}
	lines = append(lines[:max(0, min(len(lines), s.height-3))], s.foot()...)
	for i := range lines {
		lines[i] = lipgloss.NewStyle().MaxWidth(max(1, s.width)).Render(lines[i])
	}
	return strings.Join(lines, "\n")
}

// list returns the lines of the list of jobs.
func (s *screen) list() []string {
	all := s.listed()
	fit := fitting(s.width, all)
	head := "  "
	for _, c := range fit {
		head += c.cell(c.name)
	}
	lines := []string{faint.Render(head)}
	if len(all) == 0 {
		none := "  No jobs yet."
		if s.lives {
			none = "  No running or paused jobs."
		}
		return append(lines, none)
	}
	for _, j := range all[min(s.first, len(all)):min(len(all), s.first+s.room())] {
		row := "  "
		if j.ID == s.chosen {
			row = "▸ "
		}
		for _, c := range fit {
			text := c.cell(c.text(j))
			switch {
			case j.ID == s.chosen:
				text = reversed.Render(text)
			case c.name == "STATE":
				text = stateStyles[j.State].Render(text)
			case c.name == "FAILED":
				text = stateStyles[mapper.StateFailed].Render(text)
			case j.State.Ended():
				text = faint.Render(text)
			}
			row += text
		}
		lines = append(lines, row)
	}
	return lines
}

// detail returns the lines with all details of a job.
func (s *screen) detail(j *topJob) []string {
	var b strings.Builder
	if j.status != nil {
		_ = describe(&b, j.status, time.Now()) // the error is ignored: the writer is in memory
	} else {
		_ = facts(&b, []string{"Job:", j.ID}, []string{"Mapper:", operator.Line(j.Mapper, 100)},
			[]string{"State:", j.standing()}, []string{"Error:", operator.Line(j.Error, 500)},
			[]string{"Processed:", operator.Number(j.Processed)}, []string{"Failures:", operator.Number(j.Failures)})
	}
	return strings.Split(strings.TrimRight(b.String(), "\n"), "\n")
}

// foot returns the last lines of the screen: a question or message about the chosen job, and a list
// of the keys.
func (s *screen) foot() []string {
	about := ""
	switch job := s.job(); {
	case s.rates != "":
		return []string{"", strong.Render("Entities a second for " + operator.Line(s.rates, 60) + ", 0 is no limit: " +
			s.typed + "▏"), faint.Render("enter sets the rate, esc cancels")}
	case s.asks.verb != "":
		return []string{"", strong.Render(strings.ToUpper(s.asks.verb[:1]) + s.asks.verb[1:] + " " +
			operator.Line(s.asks.job, 60) + "?"), faint.Render("y confirms, any other key cancels")}
	case s.err != nil:
		about = stateStyles[mapper.StateFailed].Render(fmt.Sprintf("as of %s: %s", s.at.Local().Format(time.TimeOnly),
			operator.Line(inFlags(nil, s.err).Error(), 300)))
	case s.said != "":
		about = operator.Line(s.said, 300)
	case job != nil && job.status != nil && job.status.Bottleneck != "":
		about = operator.Line(job.ID, 60) + ": " + operator.Line(job.status.Bottleneck, 300)
	case job != nil && job.Error != "":
		about = operator.Line(job.ID, 60) + ": " + operator.Line(job.Error, 300)
	}
	keys := "p pause  r resume  a abort  t retry  s set rate  u undo  enter details  e "
	if s.lives {
		keys += "show ended"
	} else {
		keys += "hide ended"
	}
	return []string{"", about, faint.Render(keys + "  q quit")}
}
