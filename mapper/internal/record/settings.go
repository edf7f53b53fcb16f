package record

import (
	"encoding/json"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/split"
)

// Strategy returns how the ranges of the job are cut.
func (j *Job) Strategy() (sp split.Strategy, err error) {
	if len(j.Splitting) == 0 {
		return sp, nil
	}
	if err := json.Unmarshal(j.Splitting, &sp); err != nil {
		return sp, fmt.Errorf("job %s: splitting: %w", j.ID, err)
	}
	return sp, nil
}

// RateLimit returns how fast the job may go.
func (j *Job) RateLimit() (limit pace.Limit, err error) {
	if len(j.Rate) == 0 {
		return limit, nil
	}
	if err := json.Unmarshal(j.Rate, &limit); err != nil {
		return limit, fmt.Errorf("job %s: rate: %w", j.ID, err)
	}
	return limit, nil
}
