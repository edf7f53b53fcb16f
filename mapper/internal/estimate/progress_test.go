package estimate

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/billing"
	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

// page returns the record of a page of n entities that took ten seconds and was done some time ago.
func page(n int64, ago time.Duration) *record.Range {
	done := noon.Add(-ago)
	return &record.Range{State: record.Done, Processed: n, Continued: true, Created: done.Add(-10 * time.Second),
		Done: done, Ran: 9 * time.Second}
}

// open returns the record of a pending range of n entities. The argument exact says whether n was
// counted; otherwise it is an estimate.
func open(n int64, exact bool) *record.Range {
	return &record.Range{State: record.Pending, Estimate: n, Exact: exact, Created: noon.Add(-time.Second)}
}

// alone returns the record of a range with one entity that has failed some attempts. The next
// attempt is due after wait.
func alone(attempts int64, wait time.Duration) *record.Range {
	return &record.Range{State: record.Pending, Alone: true, Estimate: 1, Refusals: attempts,
		NotBefore: noon.Add(wait), Start: keyspace.At(datastore.IDKey("K", 1, nil))}
}

// again returns the record of a range with one entity that was retried, and is done. If its last
// attempt has failed, failed is the ID of the job.
func again(failed string) *record.Range {
	r := page(1, 5*time.Second)
	r.Alone, r.Failed = true, failed
	return r
}

// lookAt returns the facts (a Look) about a job with these records. It was started ten minutes ago,
// and has one worker.
func lookAt(all ...*record.Range) Look {
	s := record.NewSample()
	l := Look{Job: &record.Job{State: record.Running, Created: noon.Add(-10 * time.Minute), Workers: 1,
		PageTime: int64(3 * time.Second), Timeout: int64(30 * time.Second)},
		Query: query.Query{Kind: "K"}, Now: noon, Prices: billing.NAM5}
	l.Totals.Sample = s
	for _, r := range all {
		if s.Add(r); r.State != record.Done {
			l.Totals.Pending++
		}
	}
	return l
}

// TestCounts checks the estimated numbers of entities and their bounds.
func TestCounts(t *testing.T) {
	sampled := func(l Look, scale, left float64, census *record.Census) Look {
		l.Totals.Sample.Scale, l.Totals.Sample.LeftScale, l.Totals.Sample.Census = scale, left, census
		return l
	}
	retried := lookAt(alone(1, time.Second), page(1000, time.Minute))
	retried.Job.Before = []byte(`{"processed":98750,"failures":1250}`)
	for _, c := range []struct {
		name string
		look Look
		want string // processed, failures, remaining, total: estimate (bounds)
	}{
		{"nothing is known", lookAt(open(0, false)), "0 (0 to 0) + 0 (0 to 0) + -1 (0 to -1) = -1 (0 to -1); 0 0 100%"},
		{"all is counted", lookAt(page(60, time.Second), open(240, true)),
			"60 (60 to 60) + 0 (0 to 0) + 240 (240 to 240) = 300 (300 to 300); 20 20 20%"},
		{"an entity is tried again", lookAt(page(60, time.Second), alone(1, time.Second)),
			"60 (60 to 60) + 0 (0 to 0) + 1 (1 to 1) = 61 (61 to 61); 98 98 98%"},
		{"a guess without samples is off by e^(3*sqrt(0.25^2+1))", lookAt(page(60, time.Second), open(240, false)),
			"60 (60 to 60) + 0 (0 to 0) + 240 (10 to 5287) = 300 (70 to 5347); 1 20 86%"},
		{"nothing is known about a pending range", lookAt(page(60, time.Second), open(240, true), open(0, false)),
			"60 (60 to 60) + 0 (0 to 0) + 240 (240 to -1) = 300 (300 to -1); 0 20 20%"},
		{"of the records only a part was read, and nobody counted them",
			sampled(lookAt(page(60, time.Second), page(60, time.Second), open(60, true), open(60, true)), 2, 2, nil),
			"240 (120 to 750) + 0 (0 to 6) + 240 (0 to 480) = 480 (120 to 1236); 20 50 100%"},
		{"the records are counted, and equal: the bounds are tight",
			sampled(lookAt(page(60, time.Second), page(60, time.Second), open(60, true), open(60, true)), 2, 2,
				&record.Census{Ranges: 15, Open: 4, Failed: 7}),
			"240 (240 to 240) + 7 (7 to 7) + 240 (240 to 240) = 487 (487 to 487); 51 51 51%"},
		{"failures are retried: all else is known from before",
			sampled(retried, 100, 1, &record.Census{Ranges: 2000, Open: 250, Failed: 759}),
			"98991 (98991 to 98991) + 759 (759 to 759) + 250 (250 to 250) = 100000 (100000 to 100000); 100 100 100%"},
	} {
		s := c.look.State()
		got := ""
		for i, n := range []Number{s.Processed, s.Failures, s.Remaining, s.Total} {
			got += []string{"", " + ", " + ", " = "}[i] + fmt.Sprintf("%d (%d to %d)", n.About, n.Min, n.Max)
		}
		got += fmt.Sprintf("; %.0f %.0f %.0f%%", 100*s.FractionMin, 100*s.Fraction, 100*s.FractionMax)
		if got != c.want {
			t.Errorf("%s:\n%s, want\n%s", c.name, got, c.want)
		}
	}
}

// TestTimeLeft checks the time left, and its bounds, for a job whose single worker takes a second
// for ten entities.
func TestTimeLeft(t *testing.T) {
	steady := []*record.Range{page(100, 2*time.Second), page(100, 12*time.Second), page(100, 22*time.Second)}
	with := func(more ...*record.Range) Look { return lookAt(append(more, steady...)...) }
	queued, paused, over := with(open(600, true)), with(open(600, true)), with(open(600, true))
	queued.Queue = Queue{Waits: true, Others: 2}
	retried := with()
	retried.Job.Retrying = true
	queued.Totals.Sample.Open[0].Created = noon.Add(-time.Minute)
	paused.Job.State, over.Job.State, over.Job.Ended = record.Paused, record.Aborted, noon
	ten := with(alone(1, time.Second), alone(1, time.Second), alone(1, 2*time.Second))
	ten.Job.Attempts = 10
	refused := open(10, true)
	refused.NotBefore, refused.LaterFrom = noon.Add(5*time.Second), noon.Add(-time.Second)
	for _, c := range []struct {
		name               string
		look               Look
		least, about, most time.Duration
	}{
		{"nothing is done", lookAt(open(600, true)), 0, -1, -1},
		{"a minute of work, by 1.7 more or less", with(open(600, true)), 35294 * time.Millisecond,
			60500 * time.Millisecond, 104 * time.Second},
		{"all are done", with(), 0, time.Second, 2 * time.Second},
		{"after a retry, the failed entities are looked up", retried, 0, -1, -1},
		{"an entity has succeeded in its second attempt, and others will, too", with(again(""), open(600, true)),
			35294 * time.Millisecond, 60500 * time.Millisecond, 189 * time.Second},
		{"three have failed all attempts, and others will, too", with(again("j"), again("j"), again("j"),
			open(600, true)), 103294 * time.Millisecond, 145500 * time.Millisecond, 189 * time.Second},
		{"an entity waits for its last attempt", with(alone(4, time.Minute)), time.Minute, 60500 * time.Millisecond,
			62 * time.Second},
		{"an entity waits for its second attempt, and may wait for three more", with(alone(1, time.Second)),
			time.Second, 1500 * time.Millisecond, 87 * time.Second},
		{"ten wait for their second attempt, and one of them will fail all attempts", with(slices.Repeat(
			[]*record.Range{alone(1, time.Second)}, 10)...), 76500 * time.Millisecond, 85500 * time.Millisecond,
			87 * time.Second},
		{"three wait for their second attempt of ten, and will probably succeed", ten, 2 * time.Second,
			2500 * time.Millisecond, 74 * time.Minute},
		{"two have failed three times, and will probably fail again", with(alone(3, time.Second),
			alone(3, time.Second)), time.Second, 65500 * time.Millisecond, 67 * time.Second},
		{"ranges that a service has refused for now", with(refused, refused, refused, refused), 5 * time.Second,
			5500 * time.Millisecond, 92 * time.Second},
		{"four wait, and one of them will fail again", with(alone(1, time.Second), alone(1, time.Second),
			alone(1, time.Second), alone(1, time.Second)), time.Second, 85500 * time.Millisecond, 87 * time.Second},
		{"others have most of the workers: the rate of the last minutes counts", queued, 235294 * time.Millisecond,
			400500 * time.Millisecond, 682 * time.Second},
		{"it is paused", paused, -1, -1, -1},
		{"it was aborted", over, -1, -1, -1},
	} {
		s := c.look.State()
		if s.TimeLeftMin != c.least || s.TimeLeft != c.about || s.TimeLeftMax != c.most {
			t.Errorf("%s: %v %v %v, want %v %v %v", c.name, s.TimeLeftMin, s.TimeLeft, s.TimeLeftMax, c.least, c.about,
				c.most)
		}
	}
	// A job slower than its rate limit may stay this slow, or become as fast as before.
	all := []*record.Range{open(6000, true), page(20, 10*time.Second)}
	for ago := 4 * time.Minute; ago < 10*time.Minute; ago += 10 * time.Second {
		all = append(all, page(100, ago))
	}
	slow := lookAt(all...)
	slow.Job.Rate = []byte(`{"entities":1000}`)
	if s := slow.State(); slow.slowed() == "" || s.TimeLeftMin > s.TimeLeft || s.TimeLeft > s.TimeLeftMax {
		t.Errorf("slowed %q: %v, between %v and %v", slow.slowed(), s.TimeLeft, s.TimeLeftMin, s.TimeLeftMax)
	}
	done := Look{Job: &record.Job{State: record.Succeeded, Created: noon, Ended: noon.Add(time.Minute)}}
	if s := done.State(); s.TimeLeft != 0 || s.TimeLeftMax != 0 || s.Fraction != 1 || s.Phase != Over {
		t.Errorf("it has succeeded: %+v", s)
	}
}

// TestPhases checks the phase of a job, and the text that gives the reason.
func TestPhases(t *testing.T) {
	job := func(change func(*Look), all ...*record.Range) Look {
		l := lookAt(all...)
		change(&l)
		return l
	}
	waits := func(others int) func(*Look) {
		return func(l *Look) {
			l.Queue = Queue{Waits: true, Others: others, Name: "projects/p/locations/l/queues/jobs"}
			for i := range min(others, len(l.Queue.Named)) {
				l.Queue.Named[i] = string(rune('a' + i))
			}
			l.Totals.Sample.Open[0].Created = noon.Add(-time.Minute)
		}
	}
	pausedBy := func(who string, ago time.Duration) func(*Look) {
		return func(l *Look) {
			l.Job.State = record.Paused
			l.Job.History = l.Job.History.With(record.Act{At: noon.Add(-ago), By: who, Why: "lunch", To: record.Paused})
		}
	}
	rate := func(l *Look) { l.Job.Rate = []byte(`{"entities":2}`) }
	background := func(l *Look) { l.Job.Background = true }
	// One page of ten seconds.
	yielding := func(waited time.Duration) *record.Range {
		r := page(100, 2*time.Second)
		r.Yielded, r.Ran = waited, time.Second
		return r
	}
	lately, long := page(100, 2*time.Second), page(100, 5*time.Minute)
	// One page of 100 entities every ten seconds, until a minute ago.
	steady := make([]*record.Range, 0, 60)
	for ago := 70 * time.Second; ago < 10*time.Minute; ago += 10 * time.Second {
		steady = append(steady, page(100, ago))
	}
	then := func(all ...*record.Range) []*record.Range { return append(all, steady...) }
	const wait = `its tasks wait in the queue "jobs"`
	for _, c := range []struct {
		look   Look
		phase  Phase
		reason string
	}{
		{job(func(l *Look) { l.Job.Created = noon }, open(0, false)), Starting, ""},
		{job(func(*Look) {}, open(10, true), lately), Processing, ""},
		{job(waits(1), open(10, true), long), Queued, wait + ", shared with the job a"},
		{job(waits(2), open(10, true)), Queued, wait + ", shared with the jobs a and b"},
		{job(waits(3), open(10, true), lately), Processing, wait + ", shared with the jobs a, b and c"},
		{job(waits(4), open(10, true)), Queued, wait + ", shared with the jobs a, b, c and another one"},
		{job(waits(9), open(10, true)), Queued, wait + ", shared with the jobs a, b, c and 6 others"},
		{job(waits(10), open(10, true)), Queued,
			wait + ", shared with the jobs a, b, c and at least 7 others"},
		{job(waits(0), open(10, true)), Queued,
			wait + ", which delivers none at present: is its concurrency used up?"},
		{job(waits(Unknown), open(10, true)), Queued, wait},
		{job(waits(0), open(10, true), lately), Processing, ""},
		{job(func(l *Look) { l.Queue.Complaint = "403" }, open(10, true)), Stuck, "403"},
		{job(func(*Look) {}, open(10, true), long), Stuck,
			"no page was done for 5 min: if its tasks were lost, a sweep enqueues them again within minutes"},
		{job(func(l *Look) { l.Job.Rate = []byte(`{"calls":2}`) }, open(10, true), page(100, 2*time.Minute)),
			Processing, "it keeps to its rate of 2 calls a second"},
		{job(background, open(10, true), yielding(6*time.Second)), GivingWay, "it gives way to other clients: its " +
			"pages have waited 6s each, as more pages at once would slow the database down"},
		{job(background, open(10, true), yielding(5*time.Second)), Processing, ""},
		{job(func(*Look) {}, open(10, true), yielding(6*time.Second)), Processing, ""},
		{job(func(*Look) {}, then(open(10, true), page(10, 2*time.Second))...), Slowed,
			"0 entities a second in the last 1m, 10 before: the function takes longer, " +
				"or what it calls has become slow"},
		{job(func(*Look) {}, then(open(10, true), page(120, 2*time.Second))...), Processing, ""},
		{job(func(l *Look) { l.Job.Workers = 2 }, then(open(10, true), page(10, 2*time.Second))...), Processing, ""},
		{job(func(l *Look) { l.Job.RampFrom = noon.Add(-65 * time.Second) },
			then(open(10, true), page(10, 2*time.Second))...), Processing, ""},
		{job(rate, then(open(10, true), page(10, 2*time.Second))...), Processing,
			"it keeps to its rate of 2 entities a second"},
		{job(func(*Look) {}, alone(2, 16*time.Second), lately), Retrying,
			"the failed entity is left, the next attempt is due in 16s"},
		{job(rate, open(10, true), lately), RateLimited, "it keeps to its rate of 2 entities a second"},
		{job(rate, open(10, true), page(5, time.Second)), Processing, "it keeps to its rate of 2 entities a second"},
		{job(func(l *Look) { l.Job.Trouble = "the API is down" }, open(10, true), lately), Processing,
			"the API is down"},
		{job(func(l *Look) { l.Job.Retrying = true }, lately), Retrying, "the failed entities are looked up"},
		{job(func(*Look) {}, lately), Finishing, "all entities are done, and the records are added up"},
		{job(pausedBy("ann@example.com", time.Second), open(10, true), lately), Draining,
			"paused by ann@example.com; pages that are under way finish within 20s"},
		{job(pausedBy("ann@example.com", time.Hour), open(10, true), lately), Held, "paused by ann@example.com"},
		{job(func(l *Look) {
			l.Job.State, l.Job.OverBudget, l.Job.Error = record.Paused, true, "paused by its budget"
		},
			open(10, true)), OverBudget, "paused by its budget"},
		{job(func(l *Look) { l.Job.State, l.Job.Limited, l.Job.Error = record.Paused, true, "paused by its limit" },
			open(10, true)), TooManyFailing, "paused by its limit"},
		{job(func(l *Look) { l.Job.State, l.Job.Ended = record.Failed, noon }, open(10, true)), Over, ""},
	} {
		if s := c.look.State(); s.Phase != c.phase || s.Reason != c.reason {
			t.Errorf("%q: %q, want %q: %q", s.Phase, s.Reason, c.phase, c.reason)
		}
	}
}

// TestLongJob looks at a job of ten hours, of whose 100,000 pages only 250 are sampled. A page in the
// sample was done minutes ago, but the newest open range says when a page was done.
func TestLongJob(t *testing.T) {
	const lasts, sampled, pages = 10 * time.Hour, 250, 100_000
	all := []*record.Range{{State: record.Pending, Estimate: 1000, Exact: true}}
	for i := range sampled {
		all = append(all, page(500, lasts*time.Duration(2*i+1)/(2*sampled)))
	}
	for _, c := range []struct {
		name   string
		newest time.Duration // how long ago the newest open range was created
		change func(*Look)
		phase  Phase
		works  bool
	}{
		{"a page was just done", 5 * time.Second, func(*Look) {}, Processing, true},
		{"a task is just enqueued", 5 * time.Second, func(l *Look) { l.Queue = Queue{Waits: true} }, Processing, false},
		{"no page was done for five minutes", 5 * time.Minute, func(*Look) {}, Stuck, false},
		{"it was resumed", 5 * time.Minute, func(l *Look) { l.Job.RampFrom = noon.Add(-time.Second) }, Processing,
			true},
	} {
		all[0].Created = noon.Add(-c.newest)
		l := lookAt(all...)
		l.Job.Created, l.Job.Workers = noon.Add(-lasts), 2
		l.Totals.Sample.Scale = pages / sampled
		c.change(&l)
		s := l.State()
		if works := l.AtWork()(all[0]); s.Phase != c.phase || works != c.works {
			t.Errorf("%s: %s, %q, at work %v", c.name, s.Phase, s.Reason, works)
		}
		if l.Job.RampFrom.IsZero() && math.Abs(s.EntitiesPerSecond/s.EntitiesPerSecondOverall-1) > 0.1 {
			t.Errorf("%s: %v entities a second, overall %v", c.name, s.EntitiesPerSecond, s.EntitiesPerSecondOverall)
		}
	}
}

// TestShown checks that a shown estimate of progress does not go back, and that an exact number
// may.
func TestShown(t *testing.T) {
	var shown Shown
	state := func(about, least, most int64) State {
		var s State
		s.counts(Number{about, least, most}, exactly(0), exactly(50))
		s.fractions()
		return s
	}
	for _, c := range []struct {
		now  State
		want Number
		part float64
	}{
		{state(100, 90, 110), Number{100, 90, 110}, 100.0 / 150},
		{state(95, 80, 105), Number{100, 90, 105}, 100.0 / 150},
		{state(80, 70, 90), Number{100, 90, 100}, 100.0 / 150},
		{state(99, 99, 99), Number{99, 99, 99}, 99.0 / 149},
	} {
		s := shown.Latest("j", c.now)
		if s.Processed != c.want || s.Total.About != c.want.About+50 || math.Abs(s.Fraction-c.part) > 1e-9 {
			t.Errorf("%+v, want %+v and %v", s, c.want, c.part)
		}
	}
}

// TestShownWithinTotal checks that shown estimates do not add up to more than an earlier known
// total, unless more entities are found.
func TestShownWithinTotal(t *testing.T) {
	var shown Shown
	for i, c := range []struct {
		processed, failures, left                    Number
		wantProcessed, wantFailures, wantLeft, total int64
	}{
		{exactly(100), exactly(0), exactly(19_901), 100, 0, 19_901, 20_001},
		{Number{9000, 5000, 14_000}, exactly(1), Number{8000, 4000, 20_000}, 9000, 1, 8000, 17_001},
		{Number{28_479, 14_000, 43_000}, exactly(1), exactly(2000), 18_000, 1, 2000, 20_001},
		{Number{17_000, 14_000, 21_000}, exactly(5), Number{2500, 1000, 4000}, 18_000, 5, 1996, 20_001},
		{Number{19_000, 18_500, 20_500}, exactly(5), Number{2500, 1700, 4000}, 19_000, 5, 2500, 21_505},
		{Number{24_000, 22_000, 28_000}, exactly(5), Number{Unknown, 0, Unknown}, 24_000, 5, Unknown, Unknown},
		{Number{26_000, 22_000, 28_000}, exactly(5), exactly(100), 24_400, 5, 100, 24_505},
		{exactly(22_500), exactly(5), exactly(0), 22_500, 5, 0, 22_505},
	} {
		var s State
		s.counts(c.processed, c.failures, c.left)
		s.fractions()
		s = shown.Latest("j", s)
		if s.Processed.About != c.wantProcessed || s.Failures.About != c.wantFailures ||
			s.Remaining.About != c.wantLeft || s.Total.About != c.total {
			t.Errorf("look %d: %+v, want %+v", i+1, s, c)
		}
		for _, n := range []Number{s.Processed, s.Failures, s.Remaining, s.Total} {
			if n.About != Unknown && n.About < n.Min || n.Max != Unknown && n.About > n.Max {
				t.Errorf("look %d: %+v is not within its bounds", i+1, n)
			}
		}
	}
}

// TestDollars checks that all kinds of usage cost something, and that a rehearsal writes no
// entities.
func TestDollars(t *testing.T) {
	sum := record.Totals{Processed: 990, Failures: 10, Written: 990, Pages: 10, Tasks: 4}
	for _, c := range []struct {
		name, mapper string
		query        query.Query
		reads        int64
		writes       int64
	}{
		{"entities are read", "m", query.Query{Kind: "K"}, 990 + 10 + 3*10 + 4, 990 + 2*10},
		{"keys are free", "m", query.Query{Kind: "K", KeysOnly: true}, 3*10 + 4, 990 + 2*10},
		{"a dry run", "rehearsal:m", query.Query{Kind: "K"}, 990 + 10 + 3*10 + 4, 2 * 10},
	} {
		job := &record.Job{Mapper: c.mapper, State: record.Succeeded, Created: noon, Ended: noon.Add(100 * time.Second)}
		l := Look{Job: job, Totals: sum, Query: c.query, Now: noon.Add(time.Hour), Prices: billing.NAM5}
		s := l.State()
		if s.Fraction != 1 || s.FractionMin != 1 || s.FractionMax != 1 || s.EntitiesPerSecondOverall != 10 ||
			s.EntitiesPerSecond != 0 {
			t.Errorf("%s: %+v", c.name, s)
		}
		want := billing.NAM5.Dollars(billing.Usage{Reads: c.reads, Writes: c.writes, TaskOps: 2 * 5})
		if math.Abs(s.Dollars-want) > 1e-9 {
			t.Errorf("%s: $%v, want $%v", c.name, s.Dollars, want)
		}
	}
}

// TestRateOfRehearsal looks at jobs that have changed, or would change, five times as many entities
// a second as their rate allows. A rehearsal does not write, so the rate must not slow it, nor make
// its estimated time longer.
func TestRateOfRehearsal(t *testing.T) {
	state := func(mapper, rate string) State {
		l := lookAt(open(10_000, true), page(100, 2*time.Second))
		l.Job.Mapper, l.Job.Rate = mapper, []byte(rate)
		l.Totals.Processed, l.Totals.Written = 100, 100
		return l.State()
	}
	for mapper, phase := range map[string]Phase{"m": RateLimited, "rehearsal:m": Processing} {
		free, limited := state(mapper, `{}`), state(mapper, `{"writes":2}`)
		if longer := limited.TimeLeft > free.TimeLeft; limited.Phase != phase || longer != (phase == RateLimited) {
			t.Errorf("%s: %s, %v, and without a rate %v", mapper, limited.Phase, limited.TimeLeft, free.TimeLeft)
		}
	}
}

// TestCleanedUp checks the state of a job that was aborted and then cleaned up. The records of its
// open ranges are gone, so nobody knows how many entities remain: none, and 100%, would be wrong.
func TestCleanedUp(t *testing.T) {
	job := &record.Job{State: record.Aborted, Created: noon, Ended: noon.Add(time.Minute), Cleaned: true}
	sum := record.Totals{Processed: 990, Failures: 10, Pages: 10, Pending: 4}
	s := Look{Job: job, Totals: sum, Now: noon.Add(time.Hour), Prices: billing.NAM5}.State()
	unknown := Number{Unknown, 0, Unknown}
	if s.Processed != exactly(990) || s.Failures != exactly(10) || s.Remaining != unknown ||
		s.Total != (Number{Unknown, 1000, Unknown}) || s.FractionMin != 0 || s.FractionMax != 1 ||
		s.Phase != Over || s.DollarsTotal != Unknown || s.TimeLeft != Unknown {
		t.Errorf("%+v", s)
	}
}

// TestShare checks that the larger part counts if a budget has two limits.
func TestShare(t *testing.T) {
	used := billing.Usage{Reads: 100_000, Writes: 100_000, Deletes: 50, TaskOps: 50} // 24 cents
	for _, c := range []struct {
		budget record.Budget
		want   float64
	}{
		{record.Budget{}, 0}, {record.Budget{Dollars: 0.48}, 0.5}, {record.Budget{Operations: 2_001_000}, 0.1},
		{record.Budget{Dollars: 0.48, Operations: 2_001_000}, 0.5}, {record.Budget{Dollars: 24, Operations: 400_200},
			0.5},
	} {
		if got := Share(c.budget, used, billing.NAM5); math.Abs(got-c.want) > 0.001 {
			t.Errorf("%+v: %v, want %v", c.budget, got, c.want)
		}
	}
}

// TestPresentSpeed checks over which time the present speed of a young job is measured. In its first
// ten seconds this is all of its time. Then it is the later half of its time, up to a minute.
func TestPresentSpeed(t *testing.T) {
	start := time.Date(2026, 11, 29, 12, 0, 0, 0, time.UTC)
	for after, want := range map[time.Duration]float64{
		5 * time.Second:   100, // all of its time
		16 * time.Second:  64,  // the last 10 s: 4 s slow
		40 * time.Second:  10,  // its later half
		400 * time.Second: 10,  // the last minute
	} {
		// one page a second: of 100 entities for 10 s, then of 10
		sample := &record.Sample{Scale: 1, LeftScale: 1}
		for at := time.Second; at <= after; at += time.Second {
			n := int64(10)
			if at <= 12*time.Second {
				n = 100
			}
			sample.Ends = append(sample.Ends, record.End{At: start.Add(at), Began: start.Add(at - time.Second),
				Entities: n})
		}
		j := &record.Job{State: record.Running, Created: start}
		s := Look{Job: j, Now: start.Add(after), Totals: record.Totals{Sample: sample, Pending: 1}}.State()
		if s.EntitiesPerSecond != want {
			t.Errorf("after %v: %v entities a second, want %v", after, s.EntitiesPerSecond, want)
		}
	}
}
