// Package oldnames has the old names of a job's settings in JSON. Older clients send them, stored
// ticks have them, and processes of older builds read them.
package oldnames

import "time"

// Start has settings of mapper.StartOptions.
type Start struct {
	Rehearse bool          `json:"rehearse,omitempty"`   // DryRun
	Beside   bool          `json:"beside,omitempty"`     // AllowOverlap
	Workers  int           `json:"workers,omitempty"`    // ExpectedWorkers
	Timeout  time.Duration `json:"timeout_ns,omitempty"` // EntityTimeout
}
