// Package oldnames has the former JSON names of a job's settings. Older clients still send them,
// stored ticks of schedules have them, and processes of older builds read them.
package oldnames

import "time"

// Start has the settings of mapper.StartOptions that had another name before, under this name.
type Start struct {
	Rehearse bool          `json:"rehearse,omitempty"`   // now DryRun
	Beside   bool          `json:"beside,omitempty"`     // now AllowOverlap
	Workers  int           `json:"workers,omitempty"`    // now ExpectedWorkers
	Timeout  time.Duration `json:"timeout_ns,omitempty"` // now EntityTimeout
}
