package record

import (
	"regexp"
	"strings"

	"github.com/scattermap/scattermap/internal/names"
)

var (
	rangeID     = regexp.MustCompile(`^[0-9a-f]{32}$`)
	incarnation = regexp.MustCompile(`^[0-9a-f]{24}$`)
)

// ValidJobID reports whether a text can be a job's ID.
func ValidJobID(id string) bool { return names.JobID(id) }

// ValidRangeID reports whether a text can be a range's ID.
func ValidRangeID(id string) bool { return rangeID.MatchString(id) }

// ValidIncarnation reports whether a text can be a job's incarnation.
func ValidIncarnation(s string) bool { return incarnation.MatchString(s) }

// DraftKind is the kind of two sorts of records: drafts, which are partial sums of a job's records
// (package ledger), and rate clocks ([RateClock]).
const DraftKind = "ScattermapDraft"

// RehearsalPrefix is the prefix of the names of mappers for rehearsals, which are dry runs. Users'
// mappers can't have it.
const RehearsalPrefix = "rehearsal:"

// IsRehearsal reports whether this is the name of a mapper that rehearses another one: it runs the
// other mapper's function without writing entities.
func IsRehearsal(mapper string) bool { return strings.HasPrefix(mapper, RehearsalPrefix) }
