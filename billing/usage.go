package billing

import "maps"

// A Usage counts the operations of Datastore and Cloud Tasks by the categories in which Google
// bills them.
//
// Sources: the price pages of Firestore in Datastore mode and of Cloud Tasks.
type Usage struct {
	// Reads counts entity reads:
	//
	//   - one for each entity that a lookup or a query returned, or that a lookup did not find
	//   - one for each query call that returned only keys, only projections, or nothing
	//   - one for each 1,000 index entries of an aggregation
	//
	// A query with inequalities on several properties also pays for the index entries that it
	// passes. They are not counted here.
	Reads int64 `json:"reads"`
	// SmallOps counts the results of keys-only queries, the results of projections without
	// distinct-on, and allocated IDs. They are free.
	SmallOps int64 `json:"small_ops"`
	// Writes counts inserts, updates and upserts that were committed.
	Writes int64 `json:"writes"`
	// Deletes counts deletes that were committed.
	Deletes int64 `json:"deletes"`
	// TaskOps counts Cloud Tasks operations. A successful call counts once for each task that it
	// creates, returns or deletes. A delivery attempt counts once. For a task of more than
	// 32 KiB, each of these counts once for each started 32 KiB.
	TaskOps int64 `json:"task_ops"`
	// RPCs counts calls by method, such as "Lookup", whether or not they succeeded.
	RPCs map[string]int64 `json:"rpcs,omitempty"`
}

// Sub returns u minus earlier: the usage between two readings of the same counters.
func (u Usage) Sub(earlier Usage) Usage {
	d := Usage{
		Reads:    u.Reads - earlier.Reads,
		SmallOps: u.SmallOps - earlier.SmallOps,
		Writes:   u.Writes - earlier.Writes,
		Deletes:  u.Deletes - earlier.Deletes,
		TaskOps:  u.TaskOps - earlier.TaskOps,
		RPCs:     maps.Clone(u.RPCs),
	}
	for method, n := range earlier.RPCs {
		if d.RPCs[method] -= n; d.RPCs[method] == 0 {
			delete(d.RPCs, method)
		}
	}
	return d
}
