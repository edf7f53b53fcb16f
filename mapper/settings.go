package mapper

import (
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// queryOf returns the query of a job.
func queryOf(j *record.Job) (query.Query, error) {
	var q query.Query
	err := json.Unmarshal(j.Query, &q)
	q.Times = j.Times
	return q, err
}

// strategyOf returns how the ranges of a job are cut.
func strategyOf(j *record.Job) (split.Strategy, error) {
	var sp Splitting
	if len(j.Splitting) == 0 {
		return sp.strategy(), nil
	}
	err := json.Unmarshal(j.Splitting, &sp)
	return sp.strategy(), err
}

// rateOf returns how fast a job may go.
func rateOf(j *record.Job) (pace.Limit, error) {
	var r Rate
	if len(j.Rate) == 0 {
		return pace.Limit{}, nil
	}
	if err := json.Unmarshal(j.Rate, &r); err != nil {
		return pace.Limit{}, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return r.limit(), nil
}
