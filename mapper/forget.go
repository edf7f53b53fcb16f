package mapper

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/lifecycle"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Proof returns the proof of the job ([Job.Verify]), which was made before its records were
// deleted. It is for the function of [Mapper.Forget]; elsewhere it returns nil. The proof has no
// Problems, because a job with problems fails before.
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
	// Namespace matches all keys in the namespace, and all texts that contain its name as a whole
	// word. A whole word has no letter or digit next to it. The name of another namespace, such as
	// acme-eu, does not mention the namespace acme. A name without a letter, such as 2026, matches
	// only as a whole text, or in quotes.
	Namespace string

	// Everywhere treats all jobs of the database as if their records mentioned the subject. So all
	// jobs that have ended are cleaned up. Use it if keys do not show whose entities they are.
	Everywhere bool

	// Words are texts, such as a customer's address. They match as whole words, also if they are
	// escaped as in a URL or in JSON. A word that is a number also matches like one of Numbers.
	Words []string

	// Numbers match IDs of keys, and numbers in parameters, filters, bounds of ranges and texts.
	// They do not match counts that scattermap itself has stored.
	Numbers []int64

	// Times match in the same places as Numbers, in any time zone. In texts they match in the form
	// of RFC 3339 in UTC.
	Times []time.Time
}

// Mentions reports whether a text contains one of the subject's words, or the name of its
// namespace. Use it to refuse IDs and other texts that would reveal the subject.
func (s Subject) Mentions(text string) bool { return s.inner().InText(text) }

// inner converts the subject for package record.
func (s Subject) inner() record.Subject {
	return record.Subject{Namespace: s.Namespace, Everywhere: s.Everywhere, Words: s.Words, Numbers: s.Numbers,
		Times: s.Times}
}

// A Forgotten is the result of [Completion.Forget]. It contains hashes of the IDs of jobs instead
// of the IDs, because an ID may identify the subject.
type Forgotten struct {
	Records map[string]int64 // records searched, by kind: all kinds whose names start with "Scattermap"
	Jobs    []string         // hashes of the IDs of up to 1,000 jobs whose records have changed
	More    int64            // how many further jobs' records have changed
	Salt    string           // the salt of the hashes: see [HashID]
}

// HashID returns the hash of a job's ID with a salt. To see whether [Forgotten].Jobs contains a job
// that you know, pass its ID and [Forgotten].Salt.
func HashID(salt, id string) string { return record.Salted(salt, id) }

// Forget removes a subject from all records of scattermap in the database, including the records of
// package export. Call it in the function of [Mapper.Forget]. If it returns without an error, no
// record contains the subject any more, except the record of this job.
//
// If an ended job's records mention the subject, Forget cleans up the job, including its failures.
// From the job's own record it removes errors and counters. If that record still mentions the
// subject, Forget also removes query, parameters and reasons, as in [Mapper.Forget]. If the job's
// ID mentions the subject, Forget deletes the record. Such a job can't be undone, retried or
// verified any more. Until the clean-up is done, Forget returns an error. Return that error, so
// that the queue calls the function again.
//
// If something prevents the erasure, the error is [Permanent] and names the obstacle:
//
//   - a job that has not ended, is being undone, or belongs to a queue that the engine does not
//     have
//   - a waiting tick of a [Schedule]
//   - a record that can't be read, or that would still mention the subject
//
// Schedules keep the outcomes of their ticks, with IDs of jobs. If such an ID mentions the subject,
// Forget removes it.
//
// Forget reads all records. That takes about a minute for a million, and must fit into the time of
// the function of [Mapper.Forget].
func (d *Completion) Forget(ctx context.Context, s Subject) (*Forgotten, error) {
	e := EngineFromContext(ctx)
	if e == nil || d.closing == nil {
		return nil, fmt.Errorf("mapper: forget: %w: it is for the function of Mapper.Forget", ErrInvalidArgument)
	}
	of := record.Ref{ID: d.Status.ID, Incarnation: strings.TrimPrefix(d.RunID(), d.Status.ID+".")}
	looked, err := lifecycle.Forgetter{Jobs: e.jobs, Client: e.client, Subject: s.inner(), For: of}.Forget(ctx)
	if err != nil {
		return nil, fmt.Errorf("mapper: forget: %w", err)
	}
	job, err := e.store().LoadJob(ctx, of)
	var c *record.Closing
	if err == nil {
		c, err = job.DecodeClosing()
	}
	if err != nil || c == nil {
		return nil, fmt.Errorf("mapper: forget: what was forgotten is not known: %w", err)
	}
	return &Forgotten{looked, c.Forgot, c.More, c.Salt}, nil
}
