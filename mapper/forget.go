package mapper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Proof returns what the records of the job have proved before they were deleted, see
// [Mapper.Forget]; nil in another function.
func (d *Completion) Proof() *Proof {
	if d.closing == nil {
		return nil
	}
	return &Proof{Ranges: int(d.closing.Ranges), SingleEntities: int(d.closing.Alone),
		Failures: int(d.closing.Failures)}
}

// A Subject is what records are to forget. Of them are keys and texts; whatever is compressed or
// encoded is looked into.
type Subject struct {
	// Namespace is one: all keys in it, and its name where it is a word by itself, with no letter
	// or digit beside it.
	Namespace string

	// Everywhere says that keys of any namespace can be of it: the records of all jobs.
	Everywhere bool

	// Words are texts, such as a customer's address: where one is a word by itself, something is of
	// the subject. A word that is a number counts as one, too.
	Words []string

	// Numbers are integers: IDs of keys, numbers in parameters, in filters of queries and where
	// ranges begin and end, and words in texts. Numbers that scattermap counts by itself are none
	// of them.
	Numbers []int64

	// Times count in the same places, in any zone, and in texts as RFC 3339 has them in UTC.
	Times []time.Time
}

// Mentions reports whether a text mentions the subject: by a word, or by the name of its namespace.
func (s Subject) Mentions(text string) bool { return record.Subject(s).InText(text) }

// Forgotten is what [Completion.Forget] has looked through.
type Forgotten struct {
	Records map[string]int64 // how many, by kind: all kinds whose names begin with "Scattermap"
	Jobs    []string         // that have forgotten something: salted hashes of their IDs, up to 1,000,
	More    int64            // and how many more
	Salt    string           // of these hashes, see [HashID]
}

// HashID returns the hash of the ID of a job in [Forgotten].
func HashID(salt, id string) string { return record.Salted(salt, id) }

// Forget looks through all records of scattermap in the database, those of package export included,
// for something of a subject. Without an error there was nothing left, but in the record of this
// job itself.
//
// Where a job that has ended has something, its records are cleaned up with its failures, and
// errors and counters are taken out of its own record; if that mentions the subject it loses what
// it was about, as by [Mapper.Forget], and if its ID does it is deleted. Such a job can't be
// undone, retried or verified any more. While that goes on Forget returns an error, for another
// attempt. What is in the way is an error that is [Permanent] and names it: a job that has not
// ended, is being undone, or belongs to a queue that the engine does not have; a tick of a schedule
// that waits; a record that can't be read, or would still mention the subject. Schedules keep what
// became of ticks, without the IDs of jobs that mention it.
//
// It reads all records: a million take about a minute, and the time of the function is bounded.
func (d *Completion) Forget(ctx context.Context, s Subject) (*Forgotten, error) {
	e := EngineFromContext(ctx)
	if e == nil || d.closing == nil {
		return nil, fmt.Errorf("mapper: forget: %w: it is for the function of Mapper.Forget", ErrInvalidArgument)
	}
	of := record.Ref{ID: d.Status.ID, Incarnation: strings.TrimPrefix(d.RunID(), d.Status.ID+".")}
	looked, err := lifecycle.Forgetter{Jobs: e.jobs, Client: e.client, Subject: record.Subject(s), For: of}.Forget(ctx)
	if err != nil {
		return nil, fmt.Errorf("mapper: forget: %w", err)
	}
	job, err := e.store().LoadJob(ctx, of)
	var c *record.Closing
	if err == nil {
		c, err = record.ClosingOf(job)
	}
	if err != nil || c == nil {
		return nil, fmt.Errorf("mapper: forget: what was forgotten is not known: %w", err)
	}
	return &Forgotten{looked, c.Forgot, c.More, c.Salt}, nil
}
