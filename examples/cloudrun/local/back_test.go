package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/examples/internal/bank"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/mapper"
)

// earlier are builds with which this build must be compatible: each build continues jobs that the
// other has started. CONTRIBUTING.md says when to add a build.
var earlier = []struct{ name, commit string }{
	{"before undos, slots, budgets and shares", "db4410dd06cf126c5dee316371c575e1e86e320b"}, // 2026-11-25
	{"before retention and erasures", "4c4b3228023dee60aa2a84b889199bc97ec2cdea"},           // 2026-11-26, morning
	{"2026-11-26", "10026df142ce9e8e1ed2267b2f9863937e0203a6"},                              // afternoon
}

// git runs a git command in the repository of this file.
func git(args ...string) (string, error) {
	out, err := exec.Command("git", args...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return "", fmt.Errorf("git %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// builtAt returns the path of the service's program, built from an earlier commit. Without the
// repository's history it skips the test.
func builtAt(t *testing.T, commit string) string {
	t.Helper()
	if _, err := git("rev-parse", "--show-toplevel"); err != nil {
		t.Skipf("left out: it builds an earlier commit, and there is no repository here: %v", err)
	}
	if _, err := git("cat-file", "-e", commit+"^{commit}"); err != nil {
		shallow, _ := git("rev-parse", "--is-shallow-repository")
		t.Skipf("left out: the repository has no commit %.12s (a shallow clone: %s)", commit, shallow)
	}
	tree := filepath.Join(t.TempDir(), "earlier")
	if _, err := git("worktree", "add", "--detach", tree, commit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := git("worktree", "remove", "--force", tree); err != nil {
			t.Error(err)
		}
	})
	binary := filepath.Join(t.TempDir(), "earlier-cloudrun")
	build := exec.Command("go", "build", "-buildvcs=false", "-o", binary, "./examples/cloudrun")
	build.Dir = tree
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build %.12s: %v\n%s", commit, err, out)
	}
	return binary
}

// TestBack upgrades a service from an earlier build to this one, rolls it back and upgrades it
// again, all during one job. Each account must be credited exactly once, and every status must be
// true. Then the job is undone. Pages of the earlier build may lack the records that an undo needs.
func TestBack(t *testing.T) {
	nightly.Leave(t)
	today := built(t)
	for _, e := range earlier {
		t.Run(e.name, func(t *testing.T) {
			c, err := parse(strings.Fields("-log -entities 30000 -max-instances 2 -concurrency 4 -idle 500ms "+
				"-latency 20ms"), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			c.programs = []string{today, builtAt(t, e.commit), today}
			o := operate(t, c)
			o.settings = `, "rate": {"entities": 5000}` // slow enough that each build processes a part of the job
			for i := range 2 {
				after := c.entities * (i + 1) / 3
				o.events = append(o.events, event{after, actDeploy, 0}, event{after, actShift, 100},
					event{after, actRetire, 0})
			}
			o.must(o.start(t.Context()))
			s, err := o.follow(t.Context())
			o.must(err)
			o.service.latency.Pause()
			if s.State != mapper.StateSucceeded || s.Processed != int64(c.entities) {
				t.Errorf("%+v", s)
			}
			o.must(o.listed(t.Context()), o.quiet(t.Context()), o.proven(t.Context()))
			tally := o.credited(c.amount)
			if tally.Wrong > 0 || tally.Accounts != int64(c.entities) {
				t.Errorf("%+v", tally)
			}
			if _, redone, err := o.calls(); err != nil || redone > 0 {
				t.Errorf("the function was called more than once for %d accounts; %v", redone, err)
			}
			o.undone()
		})
	}
}

// A pilot is a running operation (the service and its job), with checks of its accounts.
type pilot struct {
	*testing.T
	*operation
}

// operate starts a service, and writes the accounts.
func operate(t *testing.T, c config) *pilot {
	t.Helper()
	screen := newScreen(t.Output(), io.Discard, int64(c.entities))
	s, err := start(t.Context(), c, screen.say, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.close)
	if err := bank.WriteAccounts(t.Context(), s.client, c.entities, accountKey); err != nil {
		t.Fatal(err)
	}
	s.latency.Resume()
	return &pilot{t, &operation{service: s, config: c, screen: screen}}
}

func (p *pilot) must(errs ...error) {
	p.Helper()
	for _, err := range errs {
		if err != nil {
			p.Fatal(err)
		}
	}
	if _, err := p.seen(); err != nil {
		p.Fatal(err)
	}
}

// credited reads the accounts, and checks that each was credited the amount.
func (p *pilot) credited(amount int) bank.Tally {
	p.Helper()
	tally, err := bank.ReadAccounts(p.Context(), p.client, int64(amount))
	p.must(err)
	return tally
}

// wait waits for the end of a job, and returns its status.
func (p *pilot) wait(ctx context.Context, id string) *mapper.Status {
	p.Helper()
	for {
		s := new(mapper.Status)
		p.must(p.call(ctx, "GET", "/jobs/"+id, "", s), sleep(ctx, 20*time.Millisecond))
		if s.State.Ended() {
			return s
		}
	}
}

// undone undoes the job. After that each account must be as before the job, or a failure of the
// undo. Failures are allowed only for accounts in pages of the earlier build; they must still be
// credited.
func (p *pilot) undone() {
	p.Helper()
	undo := new(mapper.Status)
	p.must(p.call(p.Context(), "POST", "/jobs/"+jobID+"/undo", `{"failure_limit": -1}`, undo))
	s := p.wait(p.Context(), undo.ID)
	left := p.credited(0).Wrong
	if still := int64(p.entities) - p.credited(p.amount).Wrong; still != left {
		p.Errorf("%d accounts are not as before, and %d are credited", left, still)
	}
	p.Logf("the undo %s: restored %d, left %d, failures %d, and %d accounts are credited still", s.State,
		s.Counters["restored"], s.Counters["left"], s.Failures, left)
	if s.Counters["restored"]+left != int64(p.entities) || (s.State == mapper.StateSucceeded) != (left == 0) {
		p.Errorf("the undo has restored %d, %d accounts are credited still, and it is %s", s.Counters["restored"], left,
			s.State)
	}
	if left == 0 {
		return
	}
	var failures struct{ Failures []mapper.Failure }
	p.must(p.call(p.Context(), "GET", "/jobs/"+undo.ID+"/failures", "", &failures))
	if len(failures.Failures) == 0 ||
		!strings.Contains(failures.Failures[0].Error, "an older build has done the page") {
		p.Errorf("the failures of the undo are %+v", failures.Failures)
	}
}

// TestBackUnknown starts jobs with settings that an earlier build does not know, and rolls the
// service back to that build. The earlier build must leave such a job to this build and report an
// error, or do what docs/upgrade.md says.
func TestBackUnknown(t *testing.T) {
	nightly.Leave(t)
	today, e := built(t), earlier[0]
	c, err := parse(strings.Fields("-log -entities 3000 -max-instances 2 -concurrency 6 -idle 500ms -latency 0"),
		io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	c.programs = []string{today, builtAt(t, e.commit), today}
	p := operate(t, c)
	share, err := json.Marshal(mapper.Query{Kind: "Account", Filters: []mapper.Filter{mapper.Share(0, 1, 2)}})
	p.must(err)
	jobs := map[string]string{
		"share":     fmt.Sprintf(`"query": %s, "params": {"Amount": 10}`, share),
		"rehearsal": `"query": {"kind": "Account"}, "params": {"Amount": 1000}, "rehearse": true`,
		"budget":    `"query": {"kind": "Account"}, "params": {"Amount": 100000}, "budget": {"operations": 4000}`,
	}
	ask := func(id string) *mapper.Status {
		s := new(mapper.Status)
		p.must(p.call(t.Context(), "GET", "/jobs/"+id, "", s))
		return s
	}
	for id, settings := range jobs {
		p.must(p.call(t.Context(), "POST", "/jobs",
			fmt.Sprintf(
				`{"mapper": "add-credit", "id": %q, "beside": true, "page_size": 20, "workers": 3, "rate": `+
					`{"entities": 50}, %s}`, id, settings), nil))
		for ask(id).Processed == 0 {
			p.must(sleep(t.Context(), 10*time.Millisecond))
		}
	}
	p.deployNext()
	p.shift(100)
	p.retire()
	p.must(p.call(t.Context(), "POST", "/jobs/budget/rate", "{}", nil))
	if s := p.wait(t.Context(), "budget"); s.State != mapper.StateSucceeded || s.Processed != int64(c.entities) {
		t.Errorf("the earlier build has no budgets, and the job %s: %+v", s.State, s)
	}
	if s := ask("rehearsal"); s.State != mapper.StateRunning ||
		s.Error != "its tasks wait for a build that has the mapper rehearsal:add-credit" {
		t.Errorf("a rehearsal, by the earlier build: %+v", s)
	}
	if code, text, err := p.send(t.Context(), "GET", "/jobs/share", ""); err != nil ||
		code != http.StatusInternalServerError {
		t.Errorf("a job over a share, by the earlier build: %d %s, %v", code, text, err)
	}
	p.deployNext()
	p.shift(100)
	p.retire()
	done := make(map[string]int64)
	for _, id := range []string{"share", "rehearsal"} {
		p.must(p.call(t.Context(), "POST", "/jobs/"+id+"/rate", "{}", nil))
		s := p.wait(t.Context(), id)
		if done[id] = s.Processed; s.State != mapper.StateSucceeded {
			t.Errorf("%s: %+v", id, s)
		}
	}
	credited, others := p.credited(100010), p.credited(100000)
	n := int64(c.entities)
	if n-credited.Wrong != done["share"] || n-others.Wrong != n-done["share"] || done["share"] == 0 ||
		done["rehearsal"] != n {
		t.Errorf("%v are processed; %d accounts are credited twice, and %d once", done, n-credited.Wrong,
			n-others.Wrong)
	}
}
