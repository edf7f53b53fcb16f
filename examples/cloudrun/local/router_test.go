package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// A playground is a router with fake instances, and a log of what happens to them.
type playground struct {
	*testing.T
	*router
	begun time.Time
	seen  sync.Mutex
	log   []string
	fault error // the error of starts of instances
	dies  error // the error of instances after they were told to end
}

// A fake is an instance without a process. A request's path says how long the fake takes for it,
// such as GET /5s.
type fake struct {
	*playground
	name   string
	number int
	ended  chan struct{}
	once   sync.Once
}

func (p *playground) note(format string, args ...any) {
	p.seen.Lock()
	defer p.seen.Unlock()
	p.log = append(p.log, fmt.Sprintf("%v ", time.Since(p.begun))+fmt.Sprintf(format, args...))
}

// startTime is how long a fake takes to become ready.
const startTime = 2 * time.Second

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	d, err := time.ParseDuration(strings.TrimPrefix(r.URL.Path, "/"))
	if err != nil {
		f.Error(err)
	}
	select {
	case <-time.After(d):
		fmt.Fprint(w, f.name, " ", f.number)
	case <-f.ended:
		f.lost(w, r)
	case <-r.Context().Done():
		f.lost(w, r)
	}
}

func (f *fake) Ready(ctx context.Context) error {
	select {
	case <-time.After(startTime):
	case <-ctx.Done():
		return ctx.Err()
	}
	return f.fault
}

func (f *fake) Pause()                 { f.note("%d pauses", f.number) }
func (f *fake) Continue()              { f.note("%d continues", f.number) }
func (f *fake) Kill()                  { f.note("%d is killed", f.number); f.end() }
func (f *fake) end()                   { f.once.Do(func() { close(f.ended) }) }
func (f *fake) Ended() <-chan struct{} { return f.ended }
func (f *fake) Err() error             { return f.dies }
func (f *fake) Terminate() { // like a service, it ends after its last request
	f.note("%d is terminated", f.number)
	go func() {
		for {
			f.mu.Lock()
			underWay := 0
			for _, v := range f.revisions {
				for _, in := range v.instances {
					if in.machine == f {
						underWay = in.underWay
					}
				}
			}
			f.mu.Unlock()
			if underWay == 0 {
				f.end()
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

// play runs a test with a router in virtual time. The router has one revision, "old".
func play(t *testing.T, l limits, always bool, with func(p *playground)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		p := &playground{T: t, router: newRouter(l), begun: time.Now()}
		p.always, p.wait, p.timeout, p.cold = always, 10*time.Second, 20*time.Second, time.Second
		p.add("old")
		with(p)
		p.close()
	})
}

// add deploys a revision whose instances are fakes.
func (p *playground) add(name string) {
	number := 0
	p.deploy(name, func() (machine, error) {
		p.seen.Lock()
		number++
		f := &fake{playground: p, name: name, number: number, ended: make(chan struct{})}
		p.seen.Unlock()
		p.note("%s %d starts", name, f.number)
		return f, nil
	})
}

// get sends a request, and returns a text with its answer and its duration.
func (p *playground) get(path string) string {
	begun, w := time.Now(), httptest.NewRecorder()
	p.ServeHTTP(w, httptest.NewRequestWithContext(p.Context(), "GET", "/"+path, nil))
	text, _ := io.ReadAll(w.Body)
	return fmt.Sprintf("%d after %v: %s", w.Code, time.Since(begun), strings.TrimSpace(string(text)))
}

// many sends n requests at the same time, and returns the texts of get in alphabetical order.
func (p *playground) many(n int, path string) []string {
	answers := make([]string, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { answers[i] = p.get(path) })
	}
	all.Wait()
	slices.Sort(answers)
	return answers
}

// equal fails the test if two lists differ.
func (p *playground) equal(got, want []string) {
	p.Helper()
	if !reflect.DeepEqual(got, want) {
		p.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestColdStart sends requests to a service without instances. The requests must wait until an
// instance has started. The instance must have a CPU while it starts, serves and ends. It must end
// after a long time without requests.
func TestColdStart(t *testing.T) {
	play(t, limits{max: 4, concurrency: 8, keep: time.Minute}, false, func(p *playground) {
		p.equal(p.many(2, "5s"), []string{"200 after 8s: old 1", "200 after 8s: old 1"})
		time.Sleep(10 * time.Second)
		p.equal(p.many(1, "1s"), []string{"200 after 1s: old 1"})
		time.Sleep(2 * time.Minute)
		if n := p.there(); n != 0 {
			t.Errorf("%d instances are there", n)
		}
		p.equal(p.log, []string{
			"1s old 1 starts", "3s 1 pauses", "3s 1 continues", "8s 1 pauses", "18s 1 continues", "19s 1 pauses",
			"1m19s 1 continues", "1m19s 1 is terminated",
		})
		if c, err := p.router.seen(); err != nil || c.Waited != 2 || c.longestWait != 3*time.Second || c.Idle != 1 ||
			c.life != 76*time.Second || c.paused != 70*time.Second {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// TestAlways checks the flag -cpu=always: instances keep their CPU without requests. It also checks
// that the minimum number of instances stays.
func TestAlways(t *testing.T) {
	play(t, limits{min: 1, max: 4, concurrency: 1, keep: time.Minute}, true, func(p *playground) {
		time.Sleep(time.Hour)
		p.equal(p.many(2, "5s"), []string{"200 after 5s: old 1", "200 after 8s: old 2"})
		time.Sleep(time.Hour)
		p.equal(p.log, []string{"1s old 1 starts", "1h0m1s old 2 starts", "1h1m5s 1 is terminated"})
	})
}

// TestFull sends more requests than all instances can take. The others must wait for 10 s, or for
// 3.5 times the duration of a start if that is longer. Then they must be refused.
func TestFull(t *testing.T) {
	play(t, limits{max: 2, concurrency: 2, keep: time.Minute}, false, func(p *playground) {
		p.equal(p.many(6, "9s"), []string{
			"200 after 12s: old 1", "200 after 12s: old 1", "200 after 12s: old 2", "200 after 12s: old 2",
			"429 after 10s: no instance is free", "429 after 10s: no instance is free",
		})
		p.equal(p.many(6, "11s"), []string{
			"200 after 11s: old 1", "200 after 11s: old 1", "200 after 11s: old 2", "200 after 11s: old 2",
			"429 after 10.5s: no instance is free", "429 after 10.5s: no instance is free",
		})
		answers := p.many(6, "3s")
		for i := range answers[4:] { // both instances become free at the same time, so either may take these requests
			answers[4+i], _, _ = strings.Cut(answers[4+i], ":")
		}
		p.equal(answers, []string{
			"200 after 3s: old 1", "200 after 3s: old 1", "200 after 3s: old 2", "200 after 3s: old 2",
			"200 after 6s", "200 after 6s",
		})
		if c, err := p.router.seen(); err != nil || c.Refused != 4 || c.Started != 2 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// TestTimeOut checks that a request that takes too long is answered with an error, and that its
// instance can take another request.
func TestTimeOut(t *testing.T) {
	play(t, limits{max: 1, concurrency: 1, keep: time.Minute}, false, func(p *playground) {
		p.equal(p.many(1, "1h"), []string{"504 after 23s: " + errTimeout.Error()})
		p.equal(p.many(1, "1s"), []string{"200 after 1s: old 1"})
		if c, err := p.router.seen(); err != nil || c.TimedOut != 1 || c.Cut != 0 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// TestEnds ends instances that have requests. An instance that is told to end must finish its
// requests, and get no others. If an instance is killed, its requests are lost.
func TestEnds(t *testing.T) {
	play(t, limits{max: 1, concurrency: 4, keep: time.Minute}, false, func(p *playground) {
		if p.disturb(false) {
			t.Error("there is an instance")
		}
		var all sync.WaitGroup
		all.Go(func() { p.equal(p.many(2, "10s"), []string{"200 after 13s: old 1", "200 after 13s: old 1"}) })
		time.Sleep(5 * time.Second)
		p.disturb(false)
		p.equal(p.many(1, "1s"), []string{"200 after 4s: old 2"})
		all.Wait()
		all.Go(func() { p.equal(p.many(1, "10s"), []string{"503 after 1s: the instance ended before it answered"}) })
		time.Sleep(time.Second)
		p.disturb(true)
		all.Wait()
		p.equal(p.many(1, "1s"), []string{"200 after 4s: old 3"})
		if c, err := p.router.seen(); err != nil || c.Cut != 1 || c.AtOnce != 1 {
			t.Errorf("%+v, %v", c, err)
		}
	})
}

// TestRevisions moves the requests from one revision to another. At the end, the old revision must
// have no instances.
func TestRevisions(t *testing.T) {
	play(t, limits{min: 1, max: 4, concurrency: 100, keep: time.Minute}, false, func(p *playground) {
		count := func(n int) map[string]int {
			all := make(map[string]int)
			for _, answer := range p.many(n, "1s") {
				all[answer[strings.LastIndex(answer, ":")+2:][:3]]++
			}
			return all
		}
		time.Sleep(time.Minute)
		p.add("new")
		if got := count(50); got["old"] != 50 {
			t.Errorf("%v", got)
		}
		p.shift(10)
		if got := count(50); got["old"] != 45 || got["new"] != 5 {
			t.Errorf("%v", got)
		}
		p.shift(100)
		if got := count(50); got["new"] != 50 {
			t.Errorf("%v", got)
		}
		time.Sleep(time.Hour)
		if len(p.revisions[0].instances) != 0 || len(p.revisions[1].instances) != 1 {
			t.Errorf("%d old ones and %d new ones", len(p.revisions[0].instances), len(p.revisions[1].instances))
		}
	})
}

// TestProblems checks that the router records these errors: an instance does not start, ends
// without being told to, or ends with an error.
func TestProblems(t *testing.T) {
	failed := func(p *playground, want string) {
		t.Helper()
		synctest.Wait()
		select {
		case <-p.failed:
		default:
			t.Error("nothing has failed")
		}
		if _, err := p.router.seen(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	l := limits{min: 1, max: 1, concurrency: 1, keep: time.Minute}
	t.Run("start", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			p := &playground{T: t, router: newRouter(l), begun: time.Now(), fault: errors.New("no port")}
			p.add("old")
			time.Sleep(startTime)
			failed(p, "instance 1 of old did not start: no port")
			p.close()
		})
	})
	for name, c := range map[string]struct {
		dies error
		want string
	}{
		"ends":    {nil, "nobody had told it to"},
		"crashes": {errors.New("exit status 3"), "instance 1 of old: exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, l, false, func(p *playground) {
				p.dies = c.dies
				time.Sleep(time.Minute)
				p.revisions[0].instances[0].machine.(*fake).end()
				failed(p, c.want)
			})
		})
	}
	t.Run("shuts down badly", func(t *testing.T) {
		play(t, l, false, func(p *playground) {
			p.dies = errors.New("it was killed")
			time.Sleep(time.Minute)
			p.disturb(false)
			time.Sleep(time.Second)
			failed(p, "it was killed")
		})
	})
}
