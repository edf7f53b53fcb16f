package query

import (
	"errors"
	"fmt"
	"strings"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// ErrNewer says that a newer build has started a job, which has what this one does not know.
var ErrNewer = errors.New("a newer version has started the job, and this one does not know all of it. Deploy that, " +
	"or abort the job")

// Of returns the query of a job. It is [ErrNewer] if this build does not know all of the query, or
// something that the job needs: it would process other entities, or do it otherwise. A change that
// adds such a setting has it in [record.Job.Needs] of the jobs that use it.
func Of(j *record.Job) (Query, error) {
	var q Query
	if len(j.Needs) > 0 {
		return q, fmt.Errorf("job %s: %w: it needs %s", j.ID, ErrNewer, strings.Join(j.Needs, ", "))
	}
	if err := decode(&q, j.Query, true); err != nil {
		return q, fmt.Errorf("job %s: %w: query: %w", j.ID, ErrNewer, err)
	}
	q.Times = j.Times
	return q, nil
}
