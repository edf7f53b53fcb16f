package bench

import (
	"sync"
	"time"

	"github.com/scattermap/scattermap/internal/testbucket"
)

// perBlobCall has the time of each kind of call of a bucket in the same region. These are
// assumptions about the order of magnitude.
var perBlobCall = map[string]time.Duration{
	"read": 30 * time.Millisecond, "write": 60 * time.Millisecond, "delete": 30 * time.Millisecond,
	"list": 40 * time.Millisecond,
}

const blobRate = 100 << 20 // bytes a second for one reader or writer

// A slowBucket is a bucket in memory. A call takes as long as a call of a bucket in the cloud.
type slowBucket struct {
	*testbucket.Bucket

	mu       sync.Mutex
	calls    map[string]int
	manifest time.Time // when the last manifest was written
}

func newSlowBucket(manifest func(name string) bool) *slowBucket {
	s := &slowBucket{Bucket: testbucket.New(), calls: make(map[string]int)}
	s.Hook = func(c *testbucket.Call) error {
		n := len(c.Text)
		if c.Op == "read" {
			n = len(s.Get(c.Key))
		}
		time.Sleep(perBlobCall[c.Op] + time.Duration(n)*time.Second/blobRate)
		if err := c.Err(); err != nil {
			return err
		}
		err := c.Effect()
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls[c.Op]++; c.Op == "write" && err == nil && manifest(c.Key) {
			s.manifest = time.Now()
		}
		return err
	}
	return s
}

// written returns when the last manifest was written.
func (s *slowBucket) written() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.manifest
}
