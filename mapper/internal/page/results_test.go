package page

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	_ "github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// TestNextPage checks the size of the next page, for pages of at most 500 entities and one second.
func TestNextPage(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		name  string
		o     *Results
		usual time.Duration
		want  int64
	}{
		{"fast", &Results{Reached: 500, Ran: 500 * ms, dearest: ms}, ms, 500},
		{"slow", &Results{Reached: 501, Ran: 5010 * ms, dearest: 10 * ms}, 0, 100},
		{"one entity was dear", &Results{Reached: 101, Ran: 1500 * ms, dearest: 500 * ms}, 0, 100},
		{"some hung", &Results{Reached: 101, Ran: 61_010 * ms, dearest: 10 * ms, hung: 60_000 * ms}, 0, 100},
		{"as usual, about", &Results{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 8 * ms, 125},
		{"not as usual", &Results{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 4 * ms, 100},
		{"half as fast as usual", &Results{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 5 * ms, 100},
		{"twice as fast as usual", &Results{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 20 * ms, 100},
		{"much faster than usual", &Results{Reached: 101, Ran: 1010 * ms, dearest: 10 * ms}, 40 * ms, 100},
		{"slower than a page may take", &Results{Reached: 1, Ran: 2000 * ms, dearest: 2000 * ms}, 0, 1},
		{"nothing", &Results{}, 0, 500},
	} {
		if got := test.o.NextPage(500, time.Second, test.usual); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// TestSudden checks a page whose entities become slow in its second half.
func TestSudden(t *testing.T) {
	const ms = time.Millisecond
	o := new(Results)
	each := func(n int, t, hung time.Duration) {
		for range n {
			o.Reached++
			o.took(t, hung)
		}
	}
	each(400, ms, 0)
	each(10, 100*ms, 0)
	if n := o.NextPage(500, time.Second, ms); n > 20 {
		t.Errorf("behind ten slow ones the next page has %d entities", n)
	}
	each(30, 100*ms, 0)
	if n := o.NextPage(500, time.Second, ms); n != 10 {
		t.Errorf("behind forty slow ones the next page has %d entities, want 10", n)
	}
	o = new(Results)
	each(400, 10*ms, 0)
	each(1, 30*time.Second, 30*time.Second)
	if n := o.NextPage(500, 3*time.Second, 0); n < 299 || n > 301 {
		t.Errorf("behind one that hung the next page has %d entities, want about 300", n)
	}
}

// TestKinds checks how a log line lists the kinds of a page's errors.
func TestKinds(t *testing.T) {
	fails := func(n int, err error) (all []record.Failure) {
		for i := range n {
			all = append(all, record.Failure{At: keyspace.At(keyOf(int64(i + 1))), Err: err, Suspected: err == nil})
		}
		return all
	}
	slow := TooSlowError{time.Minute}
	if !strings.Contains(slow.Error(), "1m0s") {
		t.Errorf("%v does not say the limit", slow)
	}
	o := Results{sum: sum{Failures: append(append(fails(2, slow), fails(3, nil)...), fails(1, errors.New("bad"))...)}}
	got := o.Kinds()
	// the error of this failure is unknown
	o.Failures = append(o.Failures, record.Failure{At: keyspace.At(keyOf(9))})
	if more := o.Kinds(); more != got {
		t.Errorf("%q, with one more failure %q", got, more)
	}
	if !strings.HasPrefix(got, "3 suspected of killing its process, 2 timeout ") || strings.Contains(got, "bad") {
		t.Errorf("%q: it has to have the most frequent first, and no text of a function", got)
	}
	o = Results{}
	for i := range 7 {
		o.Failures = append(o.Failures, record.Failure{At: keyspace.At(keyOf(9)),
			Err: errors.New(strings.Repeat("x", i+1))})
		got := o.Kinds()
		if listed := strings.Count(got, "cause"); listed != min(i+1, mostKinds) ||
			strings.HasSuffix(got, fmt.Sprintf(", %d of other kinds", i+1-mostKinds)) != (i+1 > mostKinds) {
			t.Errorf("of %d kinds: %s", i+1, got)
		}
	}
	if got := new(Results).Kinds(); got != "" {
		t.Errorf("%q of no failures", got)
	}
}

// TestFull checks which pages count as full, in a job whose pages have 10 entities or take a
// second.
func TestFull(t *testing.T) {
	for _, c := range []struct {
		name string
		o    *Results
		want bool
	}{
		{"few entities", &Results{Reached: 9}, false},
		{"as many as it may have", &Results{Reached: 10}, true},
		{"it took its time", &Results{Reached: 1, Spent: time.Second}, true},
		{"it writes much", &Results{Reached: 1, sum: sum{Bytes: maxBytes}}, true},
	} {
		if got := c.o.Full(10, time.Second); got != c.want {
			t.Errorf("%s: full is %v", c.name, got)
		}
	}
}

// TestFailed checks the results of a page on which the function does not run.
func TestFailed(t *testing.T) {
	f := record.Failure{At: keyspace.At(keyOf(1)), Err: errBad}
	for want, o := range map[string]*Results{
		"1 reached, 0 done; failed 1": Failed(&f), "1 reached, 0 done": Failed(nil),
	} {
		if got := said(o); got != want || len(o.Mutations()) > 0 || len(o.Guards()) > 0 {
			t.Errorf("%s, want %s", got, fmt.Sprint(want))
		}
	}
}

// TestTookAll checks when the time of a page is over. The page may take 10 seconds, or twice as
// long if it then finishes its range.
func TestTookAll(t *testing.T) {
	for _, c := range []struct {
		spent, needs time.Duration
		want         bool
	}{
		{9 * time.Second, 20 * time.Second, false}, {10 * time.Second, 11 * time.Second, true},
		{10 * time.Second, 10 * time.Second, false}, {15 * time.Second, 5 * time.Second, false},
		{15 * time.Second, 6 * time.Second, true}, {20 * time.Second, 0, true},
	} {
		if got := (&Results{Spent: c.spent}).tookAll(c.needs, 10*time.Second); got != c.want {
			t.Errorf("%+v: over %v", c, got)
		}
	}
}

// TestShared checks how the time of overlapping calls counts. Each entity must count once, even if
// the function runs twice on it.
func TestShared(t *testing.T) {
	o := &Results{Reached: 4, Ran: 100 * time.Second}
	o.shared(2*time.Second, 0, true)
	o.shared(time.Second, 0, false)
	o.shared(3*time.Second, time.Second, true)
	if all, n := o.ran(); all != 6*time.Second || n != 2 || o.hung != time.Second || o.dearest != 2*time.Second {
		t.Errorf("%d entities in %v, %+v", n, all, o)
	}
	first := o.lately.Each()
	if o.shared(time.Hour, 0, false); first == 0 || o.lately.Each() != first {
		t.Errorf("the last entities took %v each, and %v after another run", first, o.lately.Each())
	}
}
