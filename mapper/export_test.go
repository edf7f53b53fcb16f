package mapper

// What tests outside the package use of its inside.
var CompareKeys = compareKeys

const (
	RangeKind = rangeKind
	JobKind   = jobKind
)
