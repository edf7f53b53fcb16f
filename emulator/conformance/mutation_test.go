package conformance

import (
	"fmt"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// change returns a test case that commits mutations of the entity K/a. If exists is set, the entity
// exists before, with n=9. The result shows the entity.
func change(exists, transactional bool, mutations ...func(*env) *pb.Mutation) func(*env) string {
	return func(e *env) string {
		if exists {
			e.put("K", "a", "n", 9)
		}
		req := &pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_NON_TRANSACTIONAL}
		for _, m := range mutations {
			req.Mutations = append(req.Mutations, m(e))
		}
		if transactional {
			tx, err := e.raw.BeginTransaction(e.Context(), &pb.BeginTransactionRequest{ProjectId: e.project})
			e.must(err)
			req.Mode = pb.CommitRequest_TRANSACTIONAL
			req.TransactionSelector = &pb.CommitRequest_Transaction{Transaction: tx.Transaction}
		}
		_, err := e.raw.Commit(e.Context(), req)
		return outcome(err) + " " + e.get("K", "a")
	}
}

func ins(e *env) *pb.Mutation { return insert(e.name("K", "a"), props("n", 1)) }
func upd(e *env) *pb.Mutation { return update(e.name("K", "a"), props("n", 2)) }
func ups(e *env) *pb.Mutation { return upsert(e.name("K", "a"), props("n", 3)) }
func del(e *env) *pb.Mutation { return remove(e.name("K", "a")) }

// masked returns a test case that updates an entity with a property mask. The result shows the
// entity.
func masked(paths ...string) func(*env) string {
	return func(e *env) string {
		e.put("K", "a", "x", 1, "y", 1, "z", 1, "in", value(props("p", 1, "q", 1)))
		m := update(e.name("K", "a"), props("x", 2, "y", 2, "new", 2, "in", value(props("p", 2, "r", 2))))
		m.PropertyMask = &pb.PropertyMask{Paths: paths}
		_, err := e.commit(m)
		return outcome(err) + " " + e.get("K", "a")
	}
}

const ignoresMasks = "the classic emulator drops what a mask does not name"

// versioned returns a test case that updates an entity on the condition that it has a certain
// version.
func versioned(
	exists bool, strategy pb.Mutation_ConflictResolutionStrategy, base func(*pb.MutationResult) int64,
) func(*env) string {
	return func(e *env) string {
		current := new(pb.MutationResult)
		if exists {
			resp, err := e.commit(upsert(e.name("K", "a"), props("n", 9)))
			e.must(err)
			current = resp.MutationResults[0]
		}
		m := upsert(e.name("K", "a"), props("n", 1))
		m.ConflictDetectionStrategy = &pb.Mutation_BaseVersion{BaseVersion: base(current)}
		m.ConflictResolutionStrategy = strategy
		resp, err := e.commit(m)
		if err != nil {
			return outcome(err) + " " + e.get("K", "a")
		}
		return fmt.Sprintf("conflict %v %s", resp.MutationResults[0].ConflictDetected, e.get("K", "a"))
	}
}

func same(r *pb.MutationResult) int64 { return r.Version }
func stale(*pb.MutationResult) int64  { return 1 }
func none(*pb.MutationResult) int64   { return 0 }

const onlyFails = "the Firestore emulator detects conflicts with FAIL only"

const ignoresVersions = "the classic emulator takes an update time for a version"

var mutationCases = []conformanceCase{
	{name: "insert", doc: "the entity must not exist", run: change(false, true, ins), want: "OK {n=1}"},
	{name: "insert of what exists", doc: "fails with ALREADY_EXISTS", run: change(true, true, ins),
		want: "AlreadyExists {n=9}"},
	{name: "insert of what exists, alone", doc: "without a transaction, too", run: change(true, false, ins),
		want: "AlreadyExists {n=9}"},
	{name: "insert with a mask", doc: "writes what the mask names", run: func(e *env) string {
		m := insert(e.name("K", "a"), props("x", 1, "y", 2))
		m.PropertyMask = &pb.PropertyMask{Paths: []string{"x", "z"}}
		_, err := e.commit(m)
		return outcome(err) + " " + e.get("K", "a")
	}, want: "OK {x=1}"},
	{name: "delete with a mask", doc: "ignores it", run: func(e *env) string {
		e.put("K", "a", "x", 1)
		m := remove(e.name("K", "a"))
		m.PropertyMask = &pb.PropertyMask{Paths: []string{"x"}}
		_, err := e.commit(m)
		return outcome(err) + " " + e.get("K", "a")
	}, want: "OK missing"},
	{name: "mask with a quoted name", doc: "backticks quote a name", run: func(e *env) string {
		m := upsert(e.name("K", "a"), props("x", 1, "y.z", 2))
		m.PropertyMask = &pb.PropertyMask{Paths: []string{"`y.z`"}}
		_, err := e.commit(m)
		return outcome(err) + " " + e.get("K", "a")
	}, want: "OK {y.z=2}", classic: &difference{"OK {}", "the classic emulator does not know backticks"}},
	{name: "commit time of a transaction", doc: "is in the answer", run: func(e *env) string {
		resp, err := e.commitAtomically(ups(e))
		e.must(err)
		return fmt.Sprint(resp.CommitTime != nil)
	}, want: "true", classic: &difference{"false", "the classic emulator returns no commit times"}},
	{name: "commit time without a transaction", doc: "is not set for non-transactional commits",
		run: func(e *env) string {
			resp, err := e.commit(ups(e))
			e.must(err)
			return fmt.Sprint(resp.CommitTime != nil)
		}, want: "false", firestore: &difference{"true", "the Firestore emulator sets it all the same"}},
	{name: "update", doc: "the entity must exist", run: change(true, true, upd), want: "OK {n=2}"},
	{name: "update of what is missing", doc: "fails with NOT_FOUND", run: change(false, true, upd),
		want: "NotFound missing"},
	{name: "upsert", doc: "writes whether it exists or not", run: change(false, false, ups), want: "OK {n=3}"},
	{name: "upsert of what exists", doc: "writes whether it exists or not", run: change(true, false, ups),
		want: "OK {n=3}"},
	{name: "delete", doc: "removes the entity", run: change(true, false, del), want: "OK missing"},
	{name: "delete of what is missing", doc: "is no error", run: change(false, false, del), want: "OK missing"},
	{name: "twice without a transaction", doc: "no entity is changed twice", run: change(false, false, ups, ups),
		want: "InvalidArgument missing"},
	{name: "twice in a transaction", doc: "in order", run: change(false, true, ups, ups), want: "OK {n=3}"},
	{name: "delete, upsert", doc: "in order", run: change(true, true, del, ups), want: "OK {n=3}"},
	{name: "insert, delete", doc: "in order", run: change(false, true, ins, del), want: "OK missing"},
	{name: "insert, update", doc: "in order", run: change(false, true, ins, upd), want: "OK {n=2}"},
	{name: "insert, upsert", doc: "in order", run: change(false, true, ins, ups), want: "OK {n=3}"},
	{name: "update, insert", doc: "insert does not follow update", run: change(true, true, upd, ins),
		want:    "InvalidArgument {n=9}",
		classic: &difference{"AlreadyExists {n=9}", "the classic emulator says so by another code"}},
	{name: "delete, update", doc: "update does not follow delete", run: change(true, true, del, upd),
		want:    "InvalidArgument {n=9}",
		classic: &difference{"NotFound {n=9}", "the classic emulator says so by another code"}},
	{name: "without mode", doc: "the mode is required", run: func(e *env) string {
		_, err := e.raw.Commit(e.Context(), &pb.CommitRequest{ProjectId: e.project, Mutations: []*pb.Mutation{ups(e)}})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "all or nothing", doc: "a mutation that fails leaves none", run: func(e *env) string {
		_, err := e.raw.Commit(e.Context(),
			&pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
				Mutations: []*pb.Mutation{ups(e), update(e.name("K", "b"), nil)},
				TransactionSelector: &pb.CommitRequest_SingleUseTransaction{
					SingleUseTransaction: new(pb.TransactionOptions)}})
		return outcome(err) + " " + e.get("K", "a")
	}, want: "NotFound missing"},
	{name: "incomplete key", doc: "an id is allocated and returned", run: func(e *env) string {
		k := &pb.Key{PartitionId: &pb.PartitionId{ProjectId: e.project}, Path: []*pb.Key_PathElement{{Kind: "K"}}}
		resp, err := e.commit(insert(k, nil))
		e.must(err)
		return fmt.Sprint(resp.MutationResults[0].GetKey().GetPath()[0].GetId() > 0)
	}, want: "true"},
	{name: "update of an incomplete key", doc: "needs a complete one", run: func(e *env) string {
		_, err := e.commit(update(&pb.Key{PartitionId: &pb.PartitionId{ProjectId: e.project},
			Path: []*pb.Key_PathElement{{Kind: "K"}}}, nil))
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "versions", doc: "each commit has a greater version than the one before, and creation is kept",
		run: func(e *env) string {
			var versions []int64
			var created []*timestamppb.Timestamp
			for n := range 3 {
				resp, err := e.commit(upsert(e.name("K", "a"), props("n", n)))
				e.must(err)
				versions = append(versions, resp.MutationResults[0].Version)
				created = append(created, resp.MutationResults[0].CreateTime)
			}
			return fmt.Sprint(versions[0] < versions[1] && versions[1] < versions[2], " ",
				created[0].AsTime().Equal(created[2].AsTime()))
		}, want: "true true"},
	{name: "versions in results", doc: "a lookup returns the version that the commit did", run: func(e *env) string {
		resp, err := e.commit(upsert(e.name("K", "a"), props("n", 1)))
		e.must(err)
		found, err := e.raw.Lookup(e.Context(),
			&pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("K", "a")}})
		e.must(err)
		return fmt.Sprint(found.Found[0].Version == resp.MutationResults[0].Version)
	}, want: "true"},
	{name: "mask", doc: "writes what it names, and deletes what it names and the entity lacks",
		run: masked("x", "z", "new"), want: "OK {in={p=1 q=1} new=2 x=2 y=1}",
		classic: &difference{"OK {new=2 x=2}", ignoresMasks}},
	{name: "mask of a nested property", doc: "dots lead into entities", run: masked("in.p", "in.q", "in.r"),
		want:    "OK {in={p=2 r=2} x=1 y=1 z=1}",
		classic: &difference{"*", ignoresMasks}},
	{name: "empty mask", doc: "writes nothing", run: masked(), want: "OK {in={p=1 q=1} x=1 y=1 z=1}",
		classic: &difference{"*", ignoresMasks}},
	{name: "mask with a stray backslash", doc: "backslashes escape dots and backslashes", run: masked(`a\b`),
		want: "InvalidArgument {in={p=1 q=1} x=1 y=1 z=1}"},
	{name: "mask of a reserved property", doc: "reserved names can't be written", run: masked("__x__"),
		want: "InvalidArgument {in={p=1 q=1} x=1 y=1 z=1}"},
	{name: "base version", doc: "writes the version that it is for", run: versioned(true, 0, same),
		want: "conflict false {n=1}"},
	{name: "stale base version", doc: "is a conflict, and nothing is written", run: versioned(true, 0, stale),
		want: "conflict true {n=9}", firestore: &difference{"conflict false {n=1}", onlyFails}},
	{name: "base version 0", doc: "is for an entity that does not exist", run: versioned(false, 0, none),
		want: "conflict false {n=1}"},
	{name: "base version 0 of what exists", doc: "is a conflict", run: versioned(true, 0, none),
		want: "conflict true {n=9}", firestore: &difference{"conflict false {n=1}", onlyFails}},
	{name: "conflict that fails", doc: "FAIL fails the whole commit", run: versioned(true, pb.Mutation_FAIL, stale),
		want: "FailedPrecondition {n=9}"},
	{name: "resolution without detection", doc: "a resolution strategy needs a detection strategy",
		run: func(e *env) string {
			m := ups(e)
			m.ConflictResolutionStrategy = pb.Mutation_FAIL
			_, err := e.commit(m)
			return outcome(err)
		}, want: "InvalidArgument"},
	{name: "update time", doc: "likewise by the time of the last change", run: func(e *env) string {
		resp, err := e.commit(upsert(e.name("K", "a"), props("n", 9)))
		e.must(err)
		var all []string
		for _, at := range []time.Time{time.Unix(1, 0), resp.MutationResults[0].UpdateTime.AsTime()} {
			m := upsert(e.name("K", "a"), props("n", 1))
			m.ConflictDetectionStrategy = &pb.Mutation_UpdateTime{UpdateTime: timestamppb.New(at)}
			resp, err := e.commit(m)
			e.must(err)
			all = append(all, fmt.Sprint(resp.MutationResults[0].ConflictDetected))
		}
		return strings.Join(all, " ")
	}, want: "true false", firestore: &difference{"false false", onlyFails},
		classic: &difference{"*", ignoresVersions}},
	{name: "unchanged", doc: "a write that changes nothing leaves the version", run: func(e *env) string {
		first, err := e.commit(upsert(e.name("K", "a"), props("n", 1, "m", []any{1, 2})))
		e.must(err)
		second, err := e.commit(upsert(e.name("K", "a"), props("m", []any{1, 2}, "n", 1)))
		e.must(err)
		return fmt.Sprint(first.MutationResults[0].Version == second.MutationResults[0].Version)
	}, want: "true", classic: &difference{"?", "in the classic emulator a version is the time of the last write"}},
	{name: "times", doc: "are kept in microseconds", run: func(e *env) string {
		e.put("K", "a", "t", time.Unix(5, 123456789).UTC())
		return e.get("K", "a")
	}, want: "{t=1970-01-01T00:00:05.123456Z}"},
	{name: "allocate", doc: "returns complete keys that no entity has", run: func(e *env) string {
		keys, err := e.client.AllocateIDs(e.Context(), []*datastore.Key{datastore.IncompleteKey("K", nil),
			datastore.IncompleteKey("K", nil)})
		e.must(err)
		return fmt.Sprint(keys[0].ID > 0 && keys[1].ID > 0 && keys[0].ID != keys[1].ID)
	}, want: "true"},
	{name: "allocate a complete key", doc: "is refused", run: func(e *env) string {
		_, err := e.raw.AllocateIds(e.Context(),
			&pb.AllocateIdsRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("K", "a")}})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "reserve", doc: "takes keys with ids", run: func(e *env) string {
		k := e.name("K", "a")
		k.Path[0].IdType = &pb.Key_PathElement_Id{Id: 5}
		_, err := e.raw.ReserveIds(e.Context(), &pb.ReserveIdsRequest{ProjectId: e.project, Keys: []*pb.Key{k}})
		return outcome(err)
	}, want: "OK"},
	{name: "reserve an incomplete key", doc: "is refused", run: func(e *env) string {
		k := &pb.Key{PartitionId: &pb.PartitionId{ProjectId: e.project}, Path: []*pb.Key_PathElement{{Kind: "K"}}}
		_, err := e.raw.ReserveIds(e.Context(), &pb.ReserveIdsRequest{ProjectId: e.project, Keys: []*pb.Key{k}})
		return outcome(err)
	}, want: "InvalidArgument"},
}
