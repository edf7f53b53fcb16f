package mapper_test

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// A snapshotChecker checks the records of jobs after commits that change
// one, as they are at the time of that commit. It asks the Datastore's server
// itself, which no fault stands in front of. It checks every commit while there are
// few records, and otherwise as many commits as read a hundred records for each commit.
type snapshotChecker struct {
	*testing.T
	checks atomic.Int64

	mu        sync.Mutex
	abandoned map[string]time.Time                 // records, and since when they are
	decoded   map[string]*datastorepb.EntityResult // of the last check, by their wire format
	unread    int                                  // records that may be read by the next check
}

func (c *snapshotChecker) intercept(
	ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	resp, err := handler(ctx, req)
	if committed, ok := resp.(*datastorepb.CommitResponse); ok && err == nil && len(written(req)) > 0 && c.due() {
		commit := req.(*datastorepb.CommitRequest)
		c.check(info.Server.(datastorepb.DatastoreServer), commit.ProjectId, commitTime(committed))
	}
	return resp, err
}

// due reports whether a commit is to be checked.
func (c *snapshotChecker) due() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.unread += 100; c.unread < len(c.decoded) {
		return false
	}
	c.unread = 0
	return true
}

// commitTime returns the time of a commit, which is the version of what it wrote:
// only the answer to a transactional one names it.
func commitTime(committed *datastorepb.CommitResponse) *timestamppb.Timestamp {
	var at int64
	for _, r := range committed.MutationResults {
		at = max(at, r.Version)
	}
	return timestamppb.New(time.UnixMicro(at))
}

func (c *snapshotChecker) check(server datastorepb.DatastoreServer, project string, at *timestamppb.Timestamp) {
	c.checks.Add(1)
	c.mu.Lock()
	before, decoded := c.decoded, make(map[string]*datastorepb.EntityResult)
	c.mu.Unlock()
	ranges := make(map[string][]rangeRecord) // by job and incarnation
	states, cleaned, totals := make(map[string]string), make(map[string]bool), make(map[string]bool)
	for _, kind := range []string{record.JobKind, record.RangeKind} {
		q := &datastorepb.Query{Kind: []*datastorepb.KindExpression{{Name: kind}}}
		for more := true; more; {
			resp, err := server.RunQuery(context.Background(), &datastorepb.RunQueryRequest{
				ProjectId: project, QueryType: &datastorepb.RunQueryRequest_Query{Query: q},
				ReadOptions: &datastorepb.ReadOptions{ConsistencyType: &datastorepb.ReadOptions_ReadTime{ReadTime: at}},
			})
			if err != nil {
				c.Errorf("read the records: %v", err)
				return
			}
			for _, encoded := range resp.Batch.EntityResults {
				wire, result := recode(encoded, before)
				decoded[wire] = result
				p := result.Entity.Properties
				if kind == record.JobKind {
					job := result.Entity.Key.Path[0].GetName() + " " + p["incarnation"].GetStringValue()
					states[job], cleaned[job] = p["state"].GetStringValue(), p["cleaned"].GetBooleanValue()
					totals[job] = len(p["totals"].GetBlobValue()) > 0
					continue
				}
				r := rangeRecord{Job: p["job"].GetStringValue(), State: p["state"].GetStringValue(),
					Alone: p["alone"].GetBooleanValue(), Start: positionOf(p["start"]), End: positionOf(p["end"])}
				if open := p["open"]; open != nil {
					mark := open.GetStringValue()
					r.Open = &mark
				}
				if !c.mayBe(result.Entity.Key.Path[0].GetName(), r.State, at.AsTime()) {
					c.Errorf("job %s: a range was abandoned, and is %s", r.Job, r.State)
				}
				if r.Job == "" {
					continue // it keeps a job from being recorded whose start is too late
				}
				job := r.Job + " " + p["incarnation"].GetStringValue()
				ranges[job] = append(ranges[job], r)
			}
			more = resp.Batch.MoreResults == datastorepb.QueryResultBatch_NOT_FINISHED
			q.StartCursor = resp.Batch.EndCursor
		}
	}
	c.mu.Lock()
	c.decoded = decoded
	c.mu.Unlock()
	for job := range ranges {
		switch {
		case states[job] == "":
			c.Errorf("there are %d ranges of a job that is gone", len(ranges[job]))
		case cleaned[job] && totals[job] && slices.ContainsFunc(ranges[job], func(r rangeRecord) bool {
			return r.State == "pending"
		}):
			c.Errorf("job %s was added up for its clean-up, and a range is pending", job)
		case !cleaned[job]: // its records are about to go
			checkRecords(c, job, states[job], ranges[job])
		}
	}
}

// mayBe reports whether a record may be in a state at a time: it stays abandoned once it is.
func (c *snapshotChecker) mayBe(name, state string, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	since, known := c.abandoned[name]
	if state != "abandoned" {
		return !known || !at.After(since)
	}
	if !known || at.Before(since) {
		if c.abandoned == nil {
			c.abandoned = make(map[string]time.Time)
		}
		c.abandoned[name] = at
	}
	return true
}

// recode decodes a result whose entity is in encoded form, unless it is among those that were
// decoded before: most records of a job are as they were at the last commit.
func recode(
	encoded *datastorepb.EntityResult, before map[string]*datastorepb.EntityResult,
) (string, *datastorepb.EntityResult) {
	wire, err := proto.Marshal(encoded)
	if err != nil {
		panic(err)
	}
	if result, ok := before[string(wire)]; ok {
		return string(wire), result
	}
	result := new(datastorepb.EntityResult)
	if err := proto.Unmarshal(wire, result); err != nil {
		panic(err)
	}
	return string(wire), result
}

// positionOf returns the position in a value, or nil.
func positionOf(v *datastorepb.Value) *keyspace.Position {
	p := v.GetEntityValue().GetProperties()
	if p == nil {
		return nil
	}
	at := &keyspace.Position{
		Namespace: p["namespace"].GetStringValue(), Kind: p["kind"].GetStringValue(),
		Valued: p["valued"].GetBooleanValue(),
	}
	if p["key"].GetKeyValue() != nil {
		at.Key = keyOf(p["key"])
	}
	switch v := p["value"].GetValueType().(type) {
	case *datastorepb.Value_IntegerValue:
		at.Value = v.IntegerValue
	case *datastorepb.Value_TimestampValue:
		at.Value = v.TimestampValue.AsTime()
	case *datastorepb.Value_StringValue:
		at.Value = v.StringValue
	case *datastorepb.Value_DoubleValue:
		at.Value = v.DoubleValue
	case *datastorepb.Value_BooleanValue:
		at.Value = v.BooleanValue
	case *datastorepb.Value_BlobValue:
		at.Value = v.BlobValue
	}
	return at
}

// keyOf returns the key in a value, or nil.
func keyOf(v *datastorepb.Value) *datastore.Key {
	var key *datastore.Key
	for _, el := range v.GetKeyValue().GetPath() {
		key = &datastore.Key{Kind: el.Kind, ID: el.GetId(), Name: el.GetName(), Parent: key,
			Namespace: v.GetKeyValue().GetPartitionId().GetNamespaceId()}
	}
	return key
}
