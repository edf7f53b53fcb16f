// Package oldnames has the former JSON names of a job's settings. They are still in requests of
// older clients, and in stored tasks of schedules. Processes of older builds know only these names.
package oldnames

import "time"

// Start has the settings of mapper.StartOptions that were renamed, under their old names.
type Start struct {
	Rehearse bool          `json:"rehearse,omitempty"`   // now DryRun
	Beside   bool          `json:"beside,omitempty"`     // now AllowOverlap
	Workers  int           `json:"workers,omitempty"`    // now ExpectedWorkers
	Timeout  time.Duration `json:"timeout_ns,omitempty"` // now EntityTimeout
}
