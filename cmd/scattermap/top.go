package main

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/scattermap/scattermap/mapper"
)

func newTop() *cobra.Command {
	var s service
	c := &cobra.Command{
		Use: "top", Short: "Show the last 50 jobs on one live screen, and control them by keys", Args: nothing,
		Long: `Shows the last 50 jobs on one screen, unfinished ones first, and refreshes it every two seconds. Keys
pause, resume, abort or undo the chosen job, retry its failures, and set its rate. It needs a
terminal.`,
	}
	s.define(c.Flags())
	s.defineReason(c.Flags())
	c.RunE = func(c *cobra.Command, _ []string) error {
		out, ok := c.OutOrStdout().(*os.File)
		if !ok || !term.IsTerminal(int(out.Fd())) {
			return usageError(errors.New("top: it needs a terminal; \"scattermap jobs\" lists jobs, and \"scattermap " +
				"watch\" follows one"))
		}
		m := &top{screen: screen{address: s.address, width: 80, height: 24}, service: &s, ctx: c.Context()}
		first := m.load()
		loaded, _ := first.(loadedMsg)
		if loaded.err != nil { // print an error, such as a wrong address or token, before the screen is cleared
			return loaded.err
		}
		m.take(loaded)
		_, err := tea.NewProgram(m, tea.WithContext(c.Context()), tea.WithInput(c.InOrStdin()),
			tea.WithOutput(out)).Run()
		if err != nil && c.Context().Err() != nil {
			return nil // the user has pressed the key that quits
		}
		return err
	}
	return c
}

// topEvery is the time between two reads of the list. Tests make it shorter.
var topEvery = 2 * time.Second

const (
	mostStatuses = 20 // the largest number of unfinished jobs whose statuses are read
	atOnce       = 4  // the number of statuses that are read at once
)

// A top is the program of the command top, a tea.Model. It consists of the screen and the service
// whose jobs the screen shows.
type top struct {
	screen
	service *service
	ctx     context.Context
}

// Messages for the method Update.
type (
	lookMsg   struct{} // it is time to read the list of jobs
	loadedMsg struct {
		jobs []*topJob
		at   time.Time
		err  error
	}
	doneMsg struct { // an action on a job has ended
		said string
		err  error
	}
)

// Init returns the command that starts the regular reads of the list. The first one is after
// topEvery.
func (m *top) Init() tea.Cmd { return later }

// later waits for topEvery, and then returns the message that starts the next read of the list.
func later() tea.Msg {
	time.Sleep(topEvery)
	return lookMsg{}
}

// Update handles a message: a pressed key, a new size of the terminal, or the end of a call.
func (m *top) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.width, m.height = msg.Width, msg.Height
	case lookMsg:
		return m, m.load
	case loadedMsg:
		m.take(msg)
		return m, later
	case doneMsg:
		if m.said = msg.said; msg.err != nil {
			m.said = inFlags(nil, msg.err).Error()
		}
		return m, func() tea.Msg { // one more read, in addition to the one every topEvery
			loaded := m.load().(loadedMsg)
			return freshMsg(loaded)
		}
	case freshMsg:
		m.take(loadedMsg(msg))
	case tea.KeyPressMsg:
		act, quits := m.press(msg.String())
		if quits {
			return m, tea.Quit
		}
		if act.verb != "" {
			return m, func() tea.Msg { return m.do(act) }
		}
	}
	return m, nil
}

// A freshMsg is the result of a read outside of the regular ones. Unlike after a loadedMsg, Update
// does not schedule the next read.
type freshMsg loadedMsg

// View draws the screen.
func (m *top) View() tea.View {
	v := tea.NewView(m.draw())
	v.AltScreen = true
	v.WindowTitle = "scattermap"
	return v
}

// load reads the list of jobs, and the statuses of those that have not ended.
func (m *top) load() tea.Msg {
	var page struct{ Jobs []mapper.JobInfo }
	if err := m.service.call(m.ctx, http.MethodGet, "", nil, nil, &page); err != nil {
		return loadedMsg{err: err}
	}
	msg := loadedMsg{at: time.Now()}
	msg.jobs = standings(m.ctx, m.service, page.Jobs)
	return msg
}

// standings returns all jobs of a list. For the first mostStatuses jobs that have not ended, it
// also reads the status.
func standings(ctx context.Context, s *service, infos []mapper.JobInfo) (all []*topJob) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(atOnce)
	asked := 0
	for _, info := range infos {
		job := &topJob{JobInfo: info}
		all = append(all, job)
		if info.State.Ended() || asked == mostStatuses {
			continue
		}
		asked++
		group.Go(func() error {
			status := new(mapper.Status)
			// an error is ignored: the job may have been deleted
			if err := s.call(ctx, http.MethodGet, info.ID, nil, nil, status); err == nil {
				job.status = status
				job.State = status.State
			}
			return nil
		})
	}
	_ = group.Wait() // the functions of the group return no errors
	return all
}

// do sends the request that an act stands for.
func (m *top) do(a act) doneMsg {
	var body any
	if a.verb == "rate" {
		body = a.rate
	}
	job := new(mapper.Status)
	if err := m.service.call(m.ctx, http.MethodPost, url.PathEscape(a.job)+"/"+a.verb, nil, body, job); err != nil {
		return doneMsg{err: err}
	}
	return doneMsg{said: summary(job)}
}
