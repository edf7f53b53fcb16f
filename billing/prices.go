// Package billing counts the operations of Datastore and Cloud Tasks that Google charges for, and
// says what they cost.
package billing

// Prices are what Google charges for a [Usage], in US dollars. They leave out free quotas, storage
// and traffic. The zero value costs nothing. [NAM5] has an example; set your region's prices where
// they differ.
type Prices struct {
	// The prices of 100,000 operations of Datastore: entity reads, writes, deletes, and small
	// operations.
	ReadsPer100K, WritesPer100K, DeletesPer100K, SmallOpsPer100K float64
	// The price of a million operations of Cloud Tasks.
	TaskOpsPerMillion float64
}

// NAM5 are the prices of Firestore in Datastore mode in the multi-region nam5 (United States), and
// of Cloud Tasks.
//
// Sources: https://cloud.google.com/firestore/pricing (as archived in February 2020) and
// https://cloud.google.com/tasks/pricing (an archived copy), both read on 2026-11-20. Prices
// change: compare before you rely on them.
var NAM5 = Prices{
	ReadsPer100K: 0.06, WritesPer100K: 0.18, DeletesPer100K: 0.02, SmallOpsPer100K: 0,
	TaskOpsPerMillion: 0.40,
}

// Dollars returns the price of a usage, in US dollars.
func (p Prices) Dollars(u Usage) float64 {
	datastore := p.ReadsPer100K*float64(u.Reads) + p.WritesPer100K*float64(u.Writes) + p.DeletesPer100K*float64(
		u.Deletes) + p.SmallOpsPer100K*float64(u.SmallOps)
	return datastore/100_000 + p.TaskOpsPerMillion*float64(u.TaskOps)/1_000_000
}
