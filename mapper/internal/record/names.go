package record

import (
	"regexp"

	"github.com/scattermap/scattermap/internal/names"
)

var (
	rangeID     = regexp.MustCompile(`^[0-9a-f]{32}$`)
	incarnation = regexp.MustCompile(`^[0-9a-f]{24}$`)
)

// ValidJobID reports whether a job can have an ID.
func ValidJobID(id string) bool { return names.JobID(id) }

// ValidRangeID reports whether a range can have an ID.
func ValidRangeID(id string) bool { return rangeID.MatchString(id) }

// ValidIncarnation reports whether it can be the incarnation of a job.
func ValidIncarnation(s string) bool { return incarnation.MatchString(s) }

// DraftKind is the kind of the records of drafts, see ledger.Draft.
const DraftKind = "ScattermapDraft"
