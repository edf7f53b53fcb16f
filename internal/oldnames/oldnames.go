// Package oldnames has the names under which settings of a job were sent and stored as JSON before:
// clients send them, ticks that wait have them, and processes of a build from before read them.
package oldnames

import "time"

// Start are settings of mapper.StartOptions.
type Start struct {
	Rehearse bool          `json:"rehearse,omitempty"`   // DryRun
	Beside   bool          `json:"beside,omitempty"`     // AllowOverlap
	Workers  int           `json:"workers,omitempty"`    // ExpectedWorkers
	Timeout  time.Duration `json:"timeout_ns,omitempty"` // EntityTimeout
}
