package mapper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Proof returns what the job's records proved before they were deleted, in the function of
// [Mapper.Forget]. It has no Problems, because a job with some fails before. In other functions it
// returns nil.
func (d *Completion) Proof() *Proof {
	if d.closing == nil {
		return nil
	}
	return &Proof{Ranges: int(d.closing.Ranges), SingleEntities: int(d.closing.Alone),
		Failures: int(d.closing.Failures)}
}

// A Subject is data that [Completion.Forget] removes from records, such as the data of one
// customer. It matches keys and texts, also inside compressed or encoded values.
type Subject struct {
	// Namespace matches all keys in the namespace. It also matches texts that contain its name as a
	// whole word: without a letter or digit next to it.
	Namespace string

	// Everywhere treats all jobs of the database as if their records mentioned the subject, so all
	// that have ended are cleaned up. Use it if a key does not show whose entity it is.
	Everywhere bool

	// Words are texts, such as a customer's address. They match where they are whole words. A word
	// that is a number also matches as a number.
	Words []string

	// Numbers match IDs of keys, and numbers in parameters, filters, bounds of ranges and texts.
	// They do not match scattermap's own counts.
	Numbers []int64

	// Times match in the same places, in any zone, and in texts in the form of RFC 3339 in UTC.
	Times []time.Time
}

// Mentions reports whether a text contains one of the subject's words, or the name of its
// namespace. Use it to refuse IDs and other texts that would reveal the subject.
func (s Subject) Mentions(text string) bool { return record.Subject(s).InText(text) }

// A Forgotten is the result of [Completion.Forget]. It names jobs only by hashes, because their IDs
// may identify the subject.
type Forgotten struct {
	Records map[string]int64 // records searched, by kind: all kinds whose names start with "Scattermap"
	Jobs    []string         // jobs that have forgotten something, up to 1,000: hashes of their IDs
	More    int64            // how many further jobs have forgotten something
	Salt    string           // the salt of the hashes: see [HashID]
}

// HashID returns the hash of a job's ID, as in [Forgotten].Jobs, for the salt in [Forgotten].Salt.
// Use it to see whether a job that you know is among them.
func HashID(salt, id string) string { return record.Salted(salt, id) }

// Forget removes a subject from all records of scattermap in the database, including the records of
// package export. Call it in the function of [Mapper.Forget]. If it returns without an error, no
// record contains the subject any more, except the record of this job.
//
// Jobs that have ended, and whose records mention the subject, are cleaned up with their failures.
// Errors and counters are removed from their own records. If a job's own record still mentions the
// subject, it loses query, parameters and reasons, as in [Mapper.Forget]. If its ID does, the
// record is deleted. Such a job can't be undone, retried or verified any more. Until the clean-up
// is done, Forget returns an error. Return it, so that the queue calls the function again.
//
// A [Permanent] error names an obstacle. It may be a job that has not ended, is being undone, or
// belongs to a queue that the engine does not have. It may also be a waiting tick of a [Schedule],
// or a record that can't be read or would still mention the subject. Schedules keep the outcomes of
// their ticks, without the IDs of jobs that mention the subject.
//
// Forget reads all records, which takes about a minute for a million. It must fit into the
// function's time.
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
