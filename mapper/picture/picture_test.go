package picture_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/mapper/picture"
)

type account struct{ Balance int64 }

var errClosed = errors.New("the account is closed")

var credit = mapper.Update("credit", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
	time.Sleep(time.Millisecond)
	if e.Key.ID > 1000 && e.Key.ID <= 1050 {
		time.Sleep(20 * time.Millisecond) // virtual
	}
	if e.Key.ID%500 == 7 {
		return mapper.Permanent(errClosed)
	}
	e.Value.Balance++
	return nil
})

// inJob calls test with a job over n accounts. Time is virtual.
func inJob(t *testing.T, n int, o *mapper.StartOptions, test func(t *testing.T, w *mappertest.Env, job *mapper.Job)) {
	mappertest.Run(t, []mapper.AnyMapper{credit}, nil, func(t *testing.T, w *mappertest.Env) {
		putAccounts(t, w, n)
		job, err := credit.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, mapper.NoParams{}, o)
		if err != nil {
			t.Fatal(err)
		}
		test(t, w, job)
	})
}

// putAccounts stores n accounts, with the IDs from 1 to n.
func putAccounts(t *testing.T, w *mappertest.Env, n int) {
	t.Helper()
	for first := 0; first < n; first += 500 {
		var keys []*datastore.Key
		var all []account
		for i := first; i < min(n, first+500); i++ {
			keys, all = append(keys, datastore.IDKey("Account", int64(i+1), nil)), append(all, account{})
		}
		if _, err := w.Engine.Client().PutMulti(t.Context(), keys, all); err != nil {
			t.Fatal(err)
		}
	}
}

func pictureOf(t *testing.T, w *mappertest.Env, id string) *picture.Picture {
	t.Helper()
	p, err := picture.Of(t.Context(), w.Engine.Client(), id)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPicture checks the picture of a job that has ended. It must have all of the job's ranges, in
// the order of keys, and their sums must equal the job's status.
func TestPicture(t *testing.T) {
	inJob(t, 3000, &mapper.StartOptions{ID: "j", PageSize: 50, ExpectedWorkers: 8},
		func(t *testing.T, w *mappertest.Env, job *mapper.Job) {
			s, err := job.Wait(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			p := pictureOf(t, w, "j")
			if p.Estimated || !p.Ended || !p.Begun.Equal(s.Created) || !p.Until.Equal(s.Ended) || len(p.History) != 2 {
				t.Errorf("estimated %v, ended %v, from %v to %v, history %v", p.Estimated, p.Ended, p.Begun, p.Until,
					p.History)
			}
			end := p.History[1]
			if end.Action != "succeeded with failures" || end.State != s.State || !end.Time.Equal(s.Ended) {
				t.Errorf("the last entry of its history is %+v", end)
			}
			var processed, failed, slow int64
			last := int64(0)
			for _, r := range p.Ranges {
				if r.Start != nil && r.Start.Key.ID < last {
					t.Errorf("%d comes after %d", r.Start.Key.ID, last)
				}
				if r.Start != nil {
					last = r.Start.Key.ID
				}
				switch r.State {
				case picture.Failed:
					failed++
					continue
				case picture.Slow:
					slow++
					if r.Start == nil || r.Start.Key.ID > 1050 || r.Start.Key.ID < 900 {
						t.Errorf("%v is slow", r.Start)
					}
				case picture.Done:
				default:
					t.Errorf("%s is %s", r.ID, r.State)
				}
				processed += r.Entities
			}
			if processed != s.Processed || failed != s.Failures || failed != 6 || slow == 0 {
				t.Errorf("%d processed, %d failed, %d slow; the status says %d and %d", processed, failed, slow,
					s.Processed, s.Failures)
			}
			if len(p.Causes) != 1 || p.Causes[0].Count != 6 || p.Causes[0].Text != errClosed.Error() ||
				p.Causes[0].Estimated {
				t.Errorf("causes %+v", p.Causes)
			}
			checkShapes(t, p, s)
			for _, i := range p.Notable(4)[:1] {
				d, err := picture.RangeOf(t.Context(), w.Engine.Client(), "j", p.Ranges[i].ID)
				if err != nil || d.State != picture.Failed || d.Error != errClosed.Error() || d.Refusals != 1 ||
					!d.Alone {
					t.Errorf("%+v, %v", d, err)
				}
			}
			root, err := picture.RangeOf(t.Context(), w.Engine.Client(), "j", p.Ranges[0].ID)
			if err != nil || root.Start != nil || root.Depth != 0 || len(root.Children) == 0 || root.PageSize != 50 {
				t.Errorf("root %+v, %v", root, err)
			}
			for _, c := range root.Children {
				if c.State != picture.Done && c.State != picture.Failed {
					t.Errorf("child %+v", c)
				}
			}
			for _, id := range []string{"", "x", "00000000000000000000000000000000", "../../../"} {
				if _, err := picture.RangeOf(t.Context(), w.Engine.Client(), "j", id); !errors.Is(err,
					picture.ErrNoSuchRange) {
					t.Errorf("range %q: %v", id, err)
				}
			}
			if _, err := picture.Of(t.Context(), w.Engine.Client(), "nobody"); !errors.Is(err, mapper.ErrNoSuchJob) {
				t.Error(err)
			}
		})
}

// checkShapes checks everything that is calculated from the picture p, which has all of the job's
// ranges. The job's status is s.
func checkShapes(t *testing.T, p *picture.Picture, s *mapper.Status) {
	t.Helper()
	x := 0.0
	for _, slot := range p.Slots(1000) {
		if math.Abs(slot.X-x) > 1e-6 || slot.Width < 0 || p.Ranges[slot.Range].Alone != (slot.Width == 0) {
			t.Errorf("slot %+v at %v", slot, x)
		}
		x += slot.Width
	}
	if math.Abs(x-1000) > 1e-6 {
		t.Errorf("the strip is %v wide", x)
	}
	sum, busy := 0.0, 0.0
	part := p.Until.Sub(p.Begun).Seconds() / 60
	for _, m := range p.Series(60) {
		sum, busy = sum+m.Rate*part, max(busy, m.Busy)
	}
	if math.Abs(sum-float64(s.Processed)) > 1 || busy < 4 || busy > 9 {
		t.Errorf("the series has %v entities, and up to %v tasks", sum, busy)
	}
	ranges, entities := 0.0, 0.0
	for _, l := range p.Levels() {
		ranges, entities = ranges+l.Ranges, entities+l.Entities
	}
	if entities != float64(s.Processed) || int64(ranges) != s.Pages {
		t.Errorf("levels of %v ranges with %v entities: %+v", ranges, entities, s)
	}
	if p.Series(0) != nil || p.Series(-1) != nil {
		t.Error("a series of no parts has parts")
	}
	if q := p.Pages(); q.Entities.Max > 50 || q.Entities.P50 < 30 || q.Each.P50 < 0.001 || q.Each.P50 > 0.002 ||
		q.Each.Max < 0.005 {
		t.Errorf("pages %+v", q)
	}
	for _, by := range picture.Colours {
		classes, names := p.Classes(by)
		seen := make(map[int]bool)
		for i, c := range classes {
			if c < picture.None || c >= len(names) {
				t.Fatalf("%s: %s is of class %d of %q", by, p.Ranges[i].ID, c, names)
			}
			seen[c] = true
		}
		if len(seen) < 2 {
			t.Errorf("%s tells nothing apart: %v of %q", by, seen, names)
		}
	}
	frames := p.Frames(30)
	if !frames[0].Equal(p.Begun) || !frames[29].Equal(p.Until) {
		t.Errorf("frames from %v to %v", frames[0], frames[29])
	}
	order := []picture.State{picture.Uncut, picture.Pending, picture.Running, picture.Done}
	before := make([]int, len(p.Ranges))
	for _, at := range frames {
		for i, state := range p.At(at) {
			now := slices.Index(order, state)
			if now < 0 {
				now = 3
			}
			if now < before[i] {
				t.Errorf("%s becomes %s again", p.Ranges[i].ID, state)
			}
			before[i] = now
		}
	}
	if i := slices.IndexFunc(before, func(n int) bool { return n != 3 }); i >= 0 {
		t.Errorf("%s is not done in the last frame", p.Ranges[i].ID)
	}
}

// TestPictureRunning takes pictures of a job while it runs. Together they must show ranges in all
// states.
func TestPictureRunning(t *testing.T) {
	inJob(t, 3000, &mapper.StartOptions{ID: "j", PageSize: 20, ExpectedWorkers: 4},
		func(t *testing.T, w *mappertest.Env, job *mapper.Job) {
			seen := make(map[picture.State]int)
			for {
				s, err := job.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p := pictureOf(t, w, "j")
				for _, r := range p.Ranges {
					seen[r.State]++
				}
				if s.State.Ended() {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
			for _, state := range []picture.State{picture.Running, picture.Done, picture.Slow, picture.Failed} {
				if seen[state] == 0 {
					t.Errorf("no range was ever %s: %v", state, seen)
				}
			}
		})
}

// TestSteady takes pictures of a job with a constant speed. The speed that [Picture.Series] shows
// must not fall at the end, although the pages under way are not committed yet.
func TestSteady(t *testing.T) {
	even := mapper.Update("even", func(_ context.Context, e *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(20 * time.Millisecond) // virtual
		e.Value.Balance++
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{even}, nil, func(t *testing.T, w *mappertest.Env) {
		putAccounts(t, w, 8000)
		job, err := even.Start(t.Context(), w.Engine, mapper.Query{Kind: "Account"}, mapper.NoParams{},
			&mapper.StartOptions{ID: "j", PageSize: 50, ExpectedWorkers: 8})
		if err != nil {
			t.Fatal(err)
		}
		looks := 0
		for time.Sleep(8130 * time.Millisecond); looks < 10; time.Sleep(370 * time.Millisecond) {
			s, err := job.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if s.State.Ended() {
				break
			}
			looks++
			all := pictureOf(t, w, "j").Series(60)
			var rate, busy [2]float64
			for i, m := range all[10:] {
				half := i / 45 // the last five of sixty, divided equally
				n := []float64{45, 5}[half]
				rate[half], busy[half] = rate[half]+m.Rate/n, busy[half]+m.Busy/n
				if m.Partial && half == 0 && i < 30 {
					t.Errorf("part %d of the time is partial", i)
				}
			}
			if !all[59].Partial || rate[1] < 0.75*rate[0] || rate[1] > 1.25*rate[0] || busy[1] < 0.75*busy[0] {
				t.Errorf("look %d: %.0f entities/s and %.1f tasks at last, %.0f and %.1f before; partial: %v", looks,
					rate[1], busy[1], rate[0], busy[0], all[59].Partial)
			}
		}
		if looks < 5 {
			t.Errorf("%d looks", looks)
		}
		if _, err := job.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for i, m := range pictureOf(t, w, "j").Series(60) {
			if m.Partial {
				t.Errorf("part %d of a job that has ended is partial", i)
			}
		}
	})
}

// TestPictureEstimated takes the picture of a job with more ranges than a picture can have. The
// estimated numbers must be close to the real ones.
func TestPictureEstimated(t *testing.T) {
	testflag.Sequential(t)
	inJob(t, 20_000, &mapper.StartOptions{ID: "j", PageSize: 10, ExpectedWorkers: 16},
		func(t *testing.T, w *mappertest.Env, job *mapper.Job) {
			time.Sleep(500 * time.Millisecond)
			if err := job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			check := func(when string) {
				s, err := job.Status(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				p := pictureOf(t, w, "j")
				done, left := 0.0, 0.0
				for _, r := range p.Ranges {
					switch {
					case r.State == picture.Running:
						t.Errorf("%s: %s runs", when, r.ID)
					case r.State == picture.Failed:
					case r.Done.IsZero():
						left += r.Weight * float64(r.Entities)
					default:
						done += r.Weight * float64(r.Entities)
					}
				}
				t.Logf("%s: %v done, %v left of %d ranges; the status says %d and %d", when, done, left, len(p.Ranges),
					s.Processed, s.Remaining)
				near := func(a float64, b int64) bool { return math.Abs(a-float64(b)) <= 0.02*20_000 }
				if !near(done, s.Processed) || s.State == mapper.StatePaused && !near(left, s.Remaining) {
					t.Errorf("%s: %v done, %v left; the status says %+v", when, done, left, s)
				}
				if s.State.Ended() && (!p.Estimated || len(p.Ranges) > 750) {
					t.Errorf("%s: %d ranges, estimated %v", when, len(p.Ranges), p.Estimated)
				}
			}
			check("paused")
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			check("ended")
		})
}

// TestPictureOfNothing takes the pictures of a job without ranges, as after a clean-up, and of a
// job whose ranges had no entities.
func TestPictureOfNothing(t *testing.T) {
	for _, p := range []*picture.Picture{{},
		{Ranges: []picture.Range{{ID: "x", State: picture.Pending},
			{ID: "y", State: picture.Done, Done: time.Unix(1, 0)}}}} {
		p.Slots(1000)
		p.Series(60)
		p.Levels()
		p.Pages()
		p.At(time.Now())
		p.Notable(10)
		for _, by := range picture.Colours {
			if classes, _ := p.Classes(by); len(classes) != len(p.Ranges) {
				t.Error(fmt.Sprint(by, classes))
			}
		}
	}
}

// TestThinRanges checks the widths of ranges with a few entities beside a large range. They must be
// as thin as possible, but visible.
func TestThinRanges(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		entities []int64
		want     []float64
	}{
		{[]int64{500, 500}, []float64{500, 500}},
		{[]int64{0, 0, 0, 0}, []float64{250, 250, 250, 250}},
		{[]int64{0, 999_999, 1}, []float64{1, 998, 1}},
		{[]int64{3, 997}, []float64{3, 997}},
		{[]int64{0, 1, 1}, []float64{1, 499.5, 499.5}},
	} {
		p := &picture.Picture{}
		for _, n := range test.entities {
			p.Ranges = append(p.Ranges, picture.Range{Entities: n, Weight: 1})
		}
		for i, s := range p.Slots(1000) {
			if math.Abs(s.Width-test.want[i]) > 1e-9 {
				t.Errorf("%v: range %d is %v wide, want %v", test.entities, i, s.Width, test.want[i])
			}
		}
	}
}

// TestPicturePaused takes the picture of a job that was paused and resumed. It must show no tasks
// under way during the pause.
func TestPicturePaused(t *testing.T) {
	testflag.Sequential(t)
	inJob(t, 3000, &mapper.StartOptions{ID: "j", PageSize: 20, ExpectedWorkers: 4},
		func(t *testing.T, w *mappertest.Env, job *mapper.Job) {
			time.Sleep(300 * time.Millisecond)
			if err := job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			p := pictureOf(t, w, "j")
			halted, resumed := p.History[1].Time.Add(5*time.Second), p.History[2].Time
			idle := 0
			for _, m := range p.Series(120) {
				if m.From.After(halted) && m.From.Add(time.Second).Before(resumed) {
					if idle++; m.Busy > 0 || m.Rate > 0 {
						t.Errorf("%v tasks in flight at %v, while the job was paused", m.Busy, m.From)
					}
				}
				if m.Busy > 11 {
					t.Errorf("%v tasks in flight", m.Busy)
				}
			}
			if idle < 50 {
				t.Errorf("%d parts of the time while the job was paused", idle)
			}
			for _, state := range p.At(halted) {
				if state == picture.Running {
					t.Error("a range runs while the job is paused")
				}
			}
		})
}

// TestPictureQueued takes pictures of a job while another job has all workers. Tasks wait in the
// queue, so no range may be shown as running. Later, when the job has the workers, ranges must be.
func TestPictureQueued(t *testing.T) {
	slow := mapper.Visit("slow", func(ctx context.Context, _ *mapper.Entity[account], _ mapper.NoParams) error {
		time.Sleep(20 * time.Second) // virtual
		return nil
	})
	mappertest.Run(t, []mapper.AnyMapper{credit, slow}, &mappertest.Options{Workers: 4},
		func(t *testing.T, w *mappertest.Env) {
			putAccounts(t, w, 4000)
			all := mapper.Query{Kind: "Account"}
			job, err := credit.Start(t.Context(), w.Engine, all, mapper.NoParams{},
				&mapper.StartOptions{ID: "j", PageSize: 100, ExpectedWorkers: 4})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(300 * time.Millisecond)
			if err := job.Pause(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			other, err := slow.Start(t.Context(), w.Engine, all, mapper.NoParams{},
				&mapper.StartOptions{ID: "other", PageSize: 20, ExpectedWorkers: 8})
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Second)
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
			running := func() (n int, phase mapper.Phase) {
				s, p, err := picture.Look(t.Context(), w.Engine, "j")
				if err != nil {
					t.Fatal(err)
				}
				_, brief, err := picture.Glance(t.Context(), w.Engine, "j")
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range slices.Concat(p.Ranges, brief.Ranges) {
					if r.State == picture.Running {
						n++
					}
				}
				if waits := strings.Contains(s.Bottleneck, "shared with the job other"); n > 0 && waits ||
					waits != slices.Equal(s.SharesQueue, []string{"other"}) {
					t.Errorf("%q, %v: %d ranges are shown as running", s.Bottleneck, s.SharesQueue, n)
				}
				return n, s.Phase
			}
			phase := mapper.PhaseProcessing
			for n := 0; phase != mapper.PhaseQueued; n, phase = running() {
				if time.Sleep(5 * time.Second); n > 0 {
					t.Fatalf("%s: %d ranges are shown as running", phase, n)
				}
			}
			if err := other.Abort(t.Context()); err != nil {
				t.Fatal(err)
			}
			for n := 0; n == 0; time.Sleep(200 * time.Millisecond) {
				n, _ = running()
			}
			if _, err := job.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		})
}
