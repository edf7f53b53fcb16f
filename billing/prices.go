// Package billing says what Google charges for: how many operations of Datastore and
// Cloud Tasks were used, and what they cost.
package billing

// Prices are what Google charges for [Usage], in US dollars. What is free of
// charge every day or month is not taken off, and storage and traffic are not
// in it.
type Prices struct {
	// Of 100,000 operations of the Datastore.
	Reads, Writes, Deletes, SmallOps float64
	// Of a million operations of Cloud Tasks.
	TaskOps float64
}

// NAM5 are the prices of Firestore in Datastore mode in the multi-region
// nam5 (United States), and of Cloud Tasks.
//
// Sources: https://cloud.google.com/firestore/pricing and
// https://cloud.google.com/tasks/pricing, in stored copies (of the first one of
// February 2020), looked up on 2026-11-20. Prices change: compare before you rely
// on them.
var NAM5 = Prices{
	Reads: 0.06, Writes: 0.18, Deletes: 0.02, SmallOps: 0,
	TaskOps: 0.40,
}

// Cost returns the price of a usage, in US dollars.
func (p Prices) Cost(u Usage) float64 {
	datastore := p.Reads*float64(u.Reads) + p.Writes*float64(u.Writes) + p.Deletes*float64(
		u.Deletes) + p.SmallOps*float64(u.SmallOps)
	return datastore/100_000 + p.TaskOps*float64(u.TaskOps)/1_000_000
}
