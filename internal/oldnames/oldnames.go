// Package oldnames has the former JSON names of a job's settings. They are still in requests of
// older clients, and in stored tasks of schedules. Processes of older builds know only these names.
package oldnames

import "time"

// Start has the settings of mapper.StartOptions that were renamed, under their old names. The tag
// old has the name of now: see package strictjson.
type Start struct {
	Rehearse bool          `json:"rehearse,omitempty" old:"dry_run"`
	Beside   bool          `json:"beside,omitempty" old:"allow_overlap"`
	Workers  int           `json:"workers,omitempty" old:"expected_workers"`
	Timeout  time.Duration `json:"timeout_ns,omitempty" old:"entity_timeout_ns"`
}
