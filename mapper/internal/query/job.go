package query

import (
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/record"
)

// Of returns the query of a job.
func Of(j *record.Job) (Query, error) {
	var q Query
	if err := json.Unmarshal(j.Query, &q); err != nil {
		return q, fmt.Errorf("job %s: query: %w", j.ID, err)
	}
	q.Times = j.Times
	return q, nil
}
