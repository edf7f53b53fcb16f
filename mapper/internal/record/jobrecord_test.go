package record

import (
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/tally"
)

var (
	noon    = time.Date(2026, 11, 22, 12, 0, 0, 123456789, time.UTC)
	rounded = noon.Truncate(time.Microsecond) // rounded to microseconds, as the database stores times
)

// TestJobTransitions checks how a job in each state continues and ends.
func TestJobTransitions(t *testing.T) {
	goOn := func(j *Job) { j.goOn(noon) }
	succeed := func(sum Totals) func(*Job) {
		return func(j *Job) {
			if err := j.Succeed(sum, noon); err != nil {
				t.Error(err)
			}
		}
	}
	suspected := Suspicion{Begun: "d", Deaths: []string{"c"}, Solo: true}
	for _, test := range []struct {
		name       string
		from, want Job
		transition func(*Job)
	}{
		{"resume a paused job", Job{State: Paused, Error: "paused by its failure limit", Limited: true, Generation: 3,
			Epoch: 4},
			Job{State: Running, RampFrom: rounded, Generation: 4, Epoch: 5}, goOn},
		{"resume a failed job", Job{State: Failed, Error: "gave up", Ended: rounded, Suspicion: suspected},
			Job{State: Running, RampFrom: rounded, Tolerant: true, Generation: 1, Epoch: 1}, goOn},
		{"resume one whose counters can't be kept", Job{State: Failed, CountersLost: true},
			Job{State: Running, RampFrom: rounded, Tolerant: true, CountersDropped: true, Generation: 1, Epoch: 1},
			goOn},
		{"resume it again", Job{State: Paused, CountersDropped: true, Tolerant: true},
			Job{State: Running, RampFrom: rounded, Tolerant: true, CountersDropped: true, Generation: 1, Epoch: 1},
			goOn},
		{"resume a job that runs", Job{State: Running, RampFrom: rounded.Add(-time.Hour)},
			Job{State: Running, RampFrom: rounded.Add(-time.Hour), Generation: 1, Epoch: 1}, goOn},
		{"retry the failures of a job", Job{State: SucceededWithFailures, Ended: rounded,
			Totals: []byte(`{"processed":5,"failures":1,"counters":{"a":1}}`)},
			Job{State: Running, RampFrom: rounded, Generation: 1, Epoch: 1, Before: []byte(`{"processed":5,` +
				`"failures":1,"pages":0,"full_pages":0,"ranges":0,"tasks":0,"pending":0,"depth":0}`)}, goOn},
		{"go on with a job that has succeeded", Job{State: Succeeded, Totals: []byte(`{"processed":5}`)},
			Job{State: Running, RampFrom: rounded, Generation: 1, Epoch: 1, Before: []byte(`{"processed":5,` +
				`"failures":0,"pages":0,"full_pages":0,"ranges":0,"tasks":0,"pending":0,"depth":0}`)}, goOn},
		{"go on with one whose totals can't be read", Job{State: Succeeded, Totals: []byte(`{`)},
			Job{State: Running, RampFrom: rounded, Generation: 1, Epoch: 1}, goOn},
		{"go on with one that has failed: it processed not all", Job{State: Failed, Totals: []byte(`{"processed":5}`)},
			Job{State: Running, RampFrom: rounded, Tolerant: true, Generation: 1, Epoch: 1}, goOn},
		{"go on with one that deletes its records", Job{State: Failed, Totals: []byte(`{"processed":5}`),
			Closing: []byte(`{}`)}, Job{State: Running, RampFrom: rounded, Tolerant: true, Generation: 1, Epoch: 1,
			Totals: []byte(`{"processed":5}`), Closing: []byte(`{}`)}, goOn},
		{"succeed", Job{State: Running, Error: "tried again", Suspicion: suspected, Finalizes: true, Epoch: 7,
			Before: []byte(`{"processed":5}`)},
			Job{State: Succeeded, Ended: rounded, Epoch: 7}, succeed(Totals{Processed: 5})},
		{"succeed with failures", Job{State: Running},
			Job{State: SucceededWithFailures, Ended: rounded}, succeed(Totals{Processed: 5, Failures: 1})},
	} {
		j := test.from
		test.transition(&j)
		if test.want.State == Succeeded || test.want.State == SucceededWithFailures {
			if sum, err := j.RecordedTotals(); err != nil || sum.Processed != 5 {
				t.Errorf("%s: totals %+v, %v", test.name, sum, err)
			}
			j.Totals = nil
		}
		if !reflect.DeepEqual(j, test.want) {
			t.Errorf("%s:\n%+v, want\n%+v", test.name, j, test.want)
		}
	}
}

// TestActive checks that a job needs sweeps while it runs and during a clean-up.
func TestActive(t *testing.T) {
	for _, test := range []struct {
		job  Job
		want bool
	}{
		{Job{State: Running}, true},
		{Job{State: Paused, Active: true}, false},
		{Job{State: Succeeded, Cleaning: "{}"}, true},
		{Job{State: Aborted, Active: true}, false},
	} {
		if test.job.Update(); test.job.Active != test.want {
			t.Errorf("%+v: active %v", test.job, test.job.Active)
		}
	}
}

// TestIncarnation checks that two different jobs with the same ID have different incarnations, even
// if their random numbers are equal.
func TestIncarnation(t *testing.T) {
	job := Job{ID: "nightly", Mapper: "m", Query: []byte(`{"kind":"A"}`), Params: []byte("{}")}
	job.Incarnate(7)
	ref := job.Ref()
	if err := ref.Is(&job); err != nil || len(job.Incarnation) != 24 {
		t.Errorf("%q: %v", job.Incarnation, err)
	}
	for name, change := range map[string]func(*Job){
		"ID":        func(j *Job) { j.ID = "nightl" },
		"mapper":    func(j *Job) { j.Mapper = "n" },
		"query":     func(j *Job) { j.Query = []byte(`{"kind":"B"}`) },
		"params":    func(j *Job) { j.Params = []byte("[]") },
		"a border":  func(j *Job) { j.Mapper, j.Query = "m{", []byte(`"kind":"A"}`) },
		"all later": func(*Job) {},
	} {
		other := job
		change(&other)
		number := uint64(7)
		if name == "all later" {
			number = 8
		}
		other.Incarnate(number)
		if err := ref.Is(&other); !errors.Is(err, ErrNoSuchJob) ||
			RangeKey(ref, "r").Equal(RangeKey(other.Ref(), "r")) {
			t.Errorf("another %s: %q, %v", name, other.Incarnation, err)
		}
		if err := (Ref{ID: other.ID}).Is(&other); err != nil {
			t.Errorf("whichever has the ID: %v", err)
		}
	}
}

// TestRampBegan checks when the ramp of a job's rate started, for jobs with and without RampFrom.
func TestRampBegan(t *testing.T) {
	old, resumed := Job{Created: noon}, Job{Created: noon, RampFrom: rounded.Add(time.Hour)}
	if !old.RampBegan().Equal(noon) || !resumed.RampBegan().Equal(rounded.Add(time.Hour)) {
		t.Errorf("%v, %v", old.RampBegan(), resumed.RampBegan())
	}
}

// TestCheckState checks which texts are valid states.
func TestCheckState(t *testing.T) {
	for _, state := range []JobState{"", Running, Paused, Succeeded, SucceededWithFailures, Failed, Aborted} {
		if err := CheckState(state); err != nil {
			t.Errorf("%q: %v", state, err)
		}
	}
	const want = `there is no state "runs": have running, paused, succeeded, succeeded with failures, failed, aborted`
	if err := CheckState("runs"); err == nil || err.Error() != want {
		t.Errorf("another text: %v, want %v", err, want)
	}
}

// TestTotalsBefore checks that a job which retries its failures still has the totals of its
// success. If these are damaged, it has none.
func TestTotalsBefore(t *testing.T) {
	for before, want := range map[string]int64{
		"": 0, `{"processed":5}`: 5, `{"processed":5`: 0, `{"processed":"5"}`: 0,
	} {
		got := (&Job{Before: []byte(before)}).TotalsBefore()
		if (got != nil) != (want > 0) || got != nil && got.Processed != want {
			t.Errorf("%s: %+v", before, got)
		}
	}
	damaged := tally.Compress([]byte(`{"processed":5}`))
	if sum, err := (&Job{Totals: damaged}).RecordedTotals(); err != nil || sum.Processed != 5 {
		t.Errorf("compressed totals: %+v, %v", sum, err)
	}
	_, err := (&Job{Totals: damaged[:len(damaged)-3]}).RecordedTotals()
	if err == nil || !strings.Contains(err.Error(), "compressed") {
		t.Errorf("damaged totals: %v", err)
	}
}

// TestOverdue checks which range's task has been due longest. A range with which a delivery has
// continued has a task only if the job was resumed since, or if an attempt has failed.
func TestOverdue(t *testing.T) {
	pending := func(after time.Duration) *Range { return &Range{State: Pending, Created: noon.Add(after)} }
	first, second, later, in, failed := pending(0), pending(time.Second), pending(0), pending(-time.Minute),
		pending(-time.Second)
	later.NotBefore = noon.Add(time.Minute)
	in.Continued, failed.Continued, failed.Generation = true, true, 1
	done := &Range{State: Done, Created: noon.Add(-time.Hour)}
	paused := Act{At: noon.Add(-2 * time.Second), To: Paused}
	for _, c := range []struct {
		name string
		acts []Act
		open []*Range
		want *Range
	}{
		{"nothing is open", nil, nil, nil},
		{"in order", nil, []*Range{first, second, later}, first},
		{"in another order", nil, []*Range{later, second, first}, first},
		{"all are in deliveries, or done", nil, []*Range{in, done}, nil},
		{"one in a delivery has failed", nil, []*Range{first, in, failed}, failed},
		{"the job was started", []Act{{At: noon, To: Running}}, []*Range{first, in}, first},
		{"its rate was set", []Act{{At: noon.Add(-time.Hour), To: Running}, {At: noon, To: Running}},
			[]*Range{first, in}, first},
		{"it is paused", []Act{{To: Running}, paused}, []*Range{first, in}, first},
		{"it was resumed", []Act{{To: Running}, paused, {At: noon, To: Running}}, []*Range{first, in}, in},
		{"it was resumed while it ran", []Act{{To: Running}, {At: noon, What: Again, To: Running}},
			[]*Range{first, in}, in},
		{"it was moved", []Act{{To: Running}, {At: noon, What: Moved, To: Running}}, []*Range{first, in}, in},
		{"older entries are missing", []Act{{At: noon, What: Again, To: Running}}, []*Range{first, in}, in},
		{"it was resumed before", []Act{paused, {At: in.Created, To: Running}, {At: noon, To: Running}},
			[]*Range{first, in}, first},
	} {
		var j Job
		for _, a := range c.acts {
			j.History = j.History.With(a)
		}
		if got := j.Overdue(c.open); got != c.want {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}
