package main

import (
	"context"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/picture"
)

// An order is the order of users by which a job is cut into parts. A part is an interval of a
// property's values or of keys.
type order struct {
	name  string
	query mapper.Query
	has   func(User) bool // reports whether a user has the property by which users are ordered
}

var active = mapper.Where("active", "=", true)

var (
	// byUserID orders users by their random user IDs. The query has the bounds of these IDs, so
	// that their range can be cut into equal parts.
	byUserID = order{"random ids", mapper.Query{
		Kind: "User", ShardBy: "userid",
		Filters: []mapper.Filter{active, mapper.Where("userid", ">=", int64(0)), mapper.Where("userid", "<", idSpace)},
	}, func(u User) bool { return u.ID != nil }}

	byJoined = order{"joined", mapper.Query{
		Kind: "User", ShardBy: "joined",
		Filters: []mapper.Filter{active, mapper.Where("joined", ">=", int64(0)),
			mapper.Where("joined", "<", joinedSpace)},
	}, func(u User) bool { return u.Joined != nil }}

	// byKey orders users by their keys. The keys have random IDs, as Datastore allocates them.
	byKey = order{"keys", mapper.Query{
		Kind: "User", Filters: []mapper.Filter{active}, End: datastore.IDKey("User", keySpace, nil),
	}, func(User) bool { return true }}
)

// A form is a way to cut the job into ranges, with one of the orders.
type form struct {
	over      order
	name      string
	splitting mapper.Splitting
}

// The ways to cut a job.
var (
	chain     = mapper.Splitting{First: 1, FanOut: 1}
	tenShards = mapper.Splitting{First: 10, FanOut: 1}
	inTen     = mapper.Splitting{First: 1, FanOut: 10, Bisect: true}
	adaptive  = mapper.Splitting{}
)

const (
	inTenName    = "page, then ten"
	adaptiveName = "adaptive"
)

// forms are the forms that the command compares. In each order the adaptive form comes first,
// because the others are compared with it.
var forms = []form{
	{byUserID, adaptiveName, adaptive},
	{byUserID, "chain", chain},
	{byUserID, "ten shards", tenShards},
	{byUserID, inTenName, inTen},
	{byJoined, adaptiveName, adaptive},
	{byJoined, "ten shards", tenShards},
	{byJoined, inTenName, inTen},
	{byKey, adaptiveName, adaptive},
	{byKey, "ten shards", tenShards},
	{byKey, inTenName, inTen},
}

// runForm writes the users, runs the job in one form, and checks the users.
func runForm(ctx context.Context, c config, f form) (o outcome, err error) {
	on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Workers: c.Workers, Latency: c.latency,
		Mappers: []mapper.AnyMapper{checkUser}})
	if err != nil {
		return o, err
	}
	defer on.Close()
	want, err := writeUsers(ctx, on.Client, c.users, f.over)
	if err != nil {
		return o, fmt.Errorf("write the users: %w", err)
	}
	on.Slow(true)
	used, begun := on.Usage(), time.Now()
	job, err := checkUser.Start(ctx, on.Engine, f.over.query, mapper.NoParams{}, &mapper.StartOptions{
		AllowEmpty: true, // -users may be 0
		ID:         "check-users", PageSize: c.Page, ExpectedWorkers: c.Workers, Splitting: f.splitting,
	})
	if err != nil {
		return o, err
	}
	status, err := job.Wait(ctx)
	if err == nil {
		err = status.Err()
	}
	if err != nil {
		return o, err
	}
	cost := on.Usage().Sub(used)
	on.Slow(false)
	if err := checkUsers(ctx, on.Client, status, want, f.over); err != nil {
		return o, err
	}
	seen, err := picture.Of(ctx, on.Client, job.ID)
	if err != nil {
		return o, err
	}
	levels := levelsOf(seen)
	return outcome{
		Over: f.over.name, Form: f.name, Seconds: status.Ended.Sub(begun).Seconds(), Checked: status.Processed,
		Invalid: status.Counters["invalid"],
		Active:  want.active, Without: want.without, Depth: len(levels) - 1, Tasks: status.Tasks, Pages: status.Pages,
		Reads: cost.Reads, Writes: cost.Writes, levels: levels, sampled: seen.Estimated,
	}, nil
}
