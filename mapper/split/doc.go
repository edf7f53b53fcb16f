// Package split cuts a query into parts of about the same size, for programs that read them in
// parallel. It needs a client of Datastore, and no engine. A job needs no package split: its tasks
// divide their ranges while they run.
//
//	parts, err := split.Query(ctx, client, mapper.Query{Kind: "Account"}, 100, nil)
//
// [Query] cuts at sampled keys, or counts entities to find the cuts. [Compare] says how even the
// parts of Query and of three other methods are. The command "scattermap splits" calls both.
package split
