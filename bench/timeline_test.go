package bench

import (
	"flag"
	"fmt"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
)

var timelineFlag = flag.Bool("timeline", false,
	"print how busy the workers are in each twentieth of a job over a random shape")

// A timeline has the times at which a job's function ran.
type timeline struct {
	mu    sync.Mutex
	begun time.Time
	runs  []call
}

// A call is a call of the function. It has the times of its start and end, counted from the job's
// start.
type call struct{ from, to time.Duration }

// watch returns a function that records its calls in the timeline.
func (tl *timeline) watch(f func(*datastore.Key)) func(*datastore.Key) {
	return func(k *datastore.Key) {
		from := time.Since(tl.begun)
		f(k)
		to := time.Since(tl.begun)
		tl.mu.Lock()
		defer tl.mu.Unlock()
		tl.runs = append(tl.runs, call{from, to})
	}
}

// busy divides a job's duration into parts. For each part it returns the percentage of the workers'
// time in which the function ran.
func (tl *timeline) busy(parts int, took time.Duration, workers int) string {
	each := took / time.Duration(parts)
	sums := make([]time.Duration, parts)
	for _, r := range tl.runs {
		for i := int(r.from / each); i < parts && time.Duration(i)*each < r.to; i++ {
			sums[i] += min(r.to, time.Duration(i+1)*each) - max(r.from, time.Duration(i)*each)
		}
	}
	var text strings.Builder
	for _, s := range sums {
		fmt.Fprintf(&text, "%4.0f", 100*s.Seconds()/each.Seconds()/float64(workers))
	}
	return text.String()
}
