package wire

import (
	"errors"
	"testing"
	"testing/synctest"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// TestCommit commits mutations of the entities 1 and 2, which hold the numbers 10 and 20. Entity 1
// was written twice, so it also has an older version, for conditions that fail.
func TestCommit(t *testing.T) {
	upsert := func(k, n int64) *datastore.Mutation { return datastore.NewUpsert(key(k), &item{n}) }
	unsent := func(k int64) *datastore.Mutation { return datastore.NewUpdate(key(k), Unsent()) }
	for _, c := range []struct {
		name string
		// mutations returns the mutations to commit. Its arguments are versions: the older and the
		// current one of entity 1, and the current one of entity 2.
		mutations func(old, now1, now2 int64) []Mutation
		code      codes.Code
		want      [3]int64 // the numbers in entities 1 to 3 after the commit; -1: no such entity
	}{
		{
			name: "without a condition",
			mutations: func(int64, int64, int64) []Mutation {
				return []Mutation{{Mutation: upsert(1, 11)}, {Mutation: upsert(3, 33)}}
			},
			want: [3]int64{11, 20, 33},
		},
		{
			name: "on the versions that are there",
			mutations: func(_, now1, now2 int64) []Mutation {
				return []Mutation{{Mutation: upsert(1, 11), Condition: Condition{Version: now1}},
					{Deletes: key(2), Condition: Condition{Version: now2}}}
			},
			want: [3]int64{11, -1, -1},
		},
		{
			name: "on a version that was: nothing is written",
			mutations: func(old, _, now2 int64) []Mutation {
				return []Mutation{{Mutation: upsert(3, 33)},
					{Mutation: upsert(2, 22), Condition: Condition{Version: now2}},
					{Mutation: upsert(1, 11), Condition: Condition{Version: old}}}
			},
			code: codes.FailedPrecondition, want: [3]int64{10, 20, -1},
		},
		{
			name: "a deletion on a version that was: nothing is deleted",
			mutations: func(old, _, _ int64) []Mutation {
				return []Mutation{{Deletes: key(2)}, {Deletes: key(1), Condition: Condition{Version: old}}}
			},
			code: codes.FailedPrecondition, want: [3]int64{10, 20, -1},
		},
		{
			name: "other entities than the client's are written",
			mutations: func(_, now1, _ int64) []Mutation {
				return []Mutation{{Mutation: unsent(1), Condition: Condition{Version: now1, Writes: sends(1, 111)}},
					{Deletes: key(2)},
					{Mutation: datastore.NewInsert(key(3), Unsent()), Condition: Condition{Writes: sends(3, 333)}}}
			},
			want: [3]int64{111, -1, 333},
		},
		{
			name: "what is not to be sent is refused",
			mutations: func(int64, int64, int64) []Mutation {
				return []Mutation{{Mutation: upsert(3, 33)}, {Mutation: unsent(1)}}
			},
			code: codes.InvalidArgument, want: [3]int64{10, 20, -1},
		},
		{
			name: "an insertion of what is there says so, as it is no transaction's",
			mutations: func(_, now1, _ int64) []Mutation {
				return []Mutation{{Mutation: upsert(1, 11), Condition: Condition{Version: now1}},
					{Mutation: datastore.NewInsert(key(2), &item{22})}}
			},
			code: codes.AlreadyExists, want: [3]int64{10, 20, -1},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newDatabase(t)
				old := db.put(t, key(1), 1)
				all := c.mutations(old, db.put(t, key(1), 10), db.put(t, key(2), 20))
				db.calls, db.commits = nil, nil
				v, err := Commit(t.Context(), db.Client, all)
				if status.Code(err) != c.code {
					t.Errorf("%v, want %v", err, c.code)
				}
				if len(db.calls) != 1 || db.calls[0] != "Commit" || db.commits[0].GetSingleUseTransaction() == nil ||
					db.commits[0].Mode != pb.CommitRequest_TRANSACTIONAL {
					t.Errorf("%q, %v", db.calls, db.commits)
				}
				for i, want := range c.want {
					if got := db.stored(t, key(int64(i+1))); got != want {
						t.Errorf("entity %d has %d, want %d", i+1, got, want)
					}
				}
				if err == nil && (v.Last(1) <= old || v.Last(len(all)) != v.Last(1) || v.Last(len(all)+1) != 0 ||
					v.Last(0) != 0) {
					t.Errorf("versions %+v, after %d", v.Of, old)
				}
			})
		})
	}
}

// TestByteForByte checks that an entity is written byte for byte. The entity has a meaning, a field
// that the Go client would not send.
func TestByteForByte(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		for _, m := range []*datastore.Mutation{datastore.NewInsert(key(1), Unsent()),
			datastore.NewUpdate(key(1), Unsent()), datastore.NewUpsert(key(1), Unsent())} {
			if _, err := Commit(t.Context(), db.Client, []Mutation{{Mutation: m, Condition: Condition{
				Writes: sends(1, 5)}}}); err != nil {
				t.Fatal(err)
			}
			ctx, v := Taking(t.Context())
			var all []datastore.PropertyList
			if _, err := db.GetAll(ctx, datastore.NewQuery("K"), &all); err != nil || len(v.Of) != 1 ||
				len(all[0]) > 0 {
				t.Fatalf("%+v, %+v, %v", v.Of, all, err)
			}
			if got := v.Of[0].Entity.Properties["T"]; got.GetStringValue() != "text" || got.Meaning != 15 {
				t.Errorf("%v is stored", got)
			}
		}
	})
}

// TestMask checks that only the properties of the mask are written.
func TestMask(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		db.put(t, key(1), 1)
		if _, err := Commit(t.Context(), db.Client, []Mutation{{Mutation: datastore.NewUpdate(key(2), Unsent()),
			Condition: Condition{Writes: sends(1, 5), Mask: &pb.PropertyMask{Paths: []string{"N"}}}}}); err != nil {
			t.Fatal(err)
		}
		ctx, v := Taking(t.Context())
		if _, err := db.GetAll(ctx, datastore.NewQuery("K"), new([]datastore.PropertyList)); err != nil {
			t.Fatal(err)
		}
		if is := v.Of[0].Entity.Properties; len(v.Of) != 1 || len(is) != 1 || is["N"].GetIntegerValue() != 5 {
			t.Errorf("%v is stored", v.Of)
		}
	})
}

// TestDeletionsApart deletes two entities whose keys have the same text. The client alone would
// send only one of the deletions.
func TestDeletionsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := newDatabase(t)
		number, name := datastore.IDKey("K", 7, nil), datastore.NameKey("K", "7", nil)
		db.put(t, number, 1)
		db.put(t, name, 2)
		v, err := Commit(t.Context(), db.Client, []Mutation{{Deletes: number}, {Mutation: datastore.NewUpsert(key(1),
			&item{1})}, {Deletes: name}})
		if err != nil || len(v.Of) != 3 || db.stored(t, number) != -1 || db.stored(t, name) != -1 ||
			db.stored(t, key(1)) != 1 {
			t.Errorf("%v, %+v", err, v.Of)
		}
	})
}

// TestSend commits a transaction that inserts entity 1, which exists already. The error counts as a
// conflict only if another mutation of the transaction has a version as its condition.
func TestSend(t *testing.T) {
	for _, c := range []struct {
		name      string
		condition func(version int64) Condition // of entity 2
		want      codes.Code
	}{
		{"no condition", func(int64) Condition { return Condition{} }, codes.AlreadyExists},
		{"a version", func(v int64) Condition { return Condition{Version: v} }, codes.Aborted},
		{"none but what is written", func(int64) Condition { return Condition{Writes: sends(2, 2), Free: true} },
			codes.AlreadyExists},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				db := newDatabase(t)
				db.put(t, key(1), 10)
				all := []Mutation{{Mutation: datastore.NewUpsert(key(2), &item{21}),
					Condition: c.condition(db.put(t, key(2), 20))}, {Mutation: datastore.NewInsert(key(1), &item{11})}}
				ctx, v := Noting(t.Context())
				_, err := db.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
					v.Send(all)
					_, err := tx.Mutate(Put(all)...)
					return err
				}, datastore.MaxAttempts(1))
				got := status.Code(err)
				if errors.Is(err, datastore.ErrConcurrentTransaction) {
					got = codes.Aborted
				}
				if got != c.want {
					t.Errorf("%v, want %v", err, c.want)
				}
				if db.stored(t, key(1)) != 10 || db.stored(t, key(2)) != 20 {
					t.Error("something was written")
				}
			})
		})
	}
}

// TestRequest checks that only the request of the caller's own commit is changed, and only once. If
// the Go client retries the request, it must be sent unchanged.
func TestRequest(t *testing.T) {
	given := func(n int) *pb.CommitRequest {
		r := new(pb.CommitRequest)
		for range n {
			r.Mutations = append(r.Mutations, &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: sends(1, 1)}})
		}
		return r
	}
	all := []Mutation{{Mutation: datastore.NewUpsert(key(1), Unsent()), Condition: Condition{Version: 3,
		Writes: sends(1, 5)}}, {Deletes: key(2)}}
	for n, ok := range []bool{false, true, false} {
		v := &Versions{sends: all}
		r := given(n)
		err := v.Request(r)
		if (err == nil) != ok || err != nil && !errors.Is(err, errConditions) {
			t.Errorf("of %d mutations: %v", n, err)
		}
		if !ok {
			continue
		}
		for range 2 { // the second one is a retry
			if len(r.Mutations) != 2 || r.Mutations[0].GetUpsert().Properties["N"].GetIntegerValue() != 5 ||
				r.Mutations[0].GetBaseVersion() != 3 || r.Mutations[0].ConflictResolutionStrategy != pb.Mutation_FAIL ||
				r.Mutations[1].GetDelete() == nil || r.TransactionSelector != nil {
				t.Errorf("%v is sent", r)
			}
			if err := v.Request(r); err != nil {
				t.Error(err)
			}
		}
	}
	r := given(3)
	if err := new(Versions).Request(r); err != nil || len(r.Mutations) != 3 {
		t.Errorf("a commit that nothing is asked of: %v, %v", r, err)
	}
	if err := (&Versions{sends: all}).Request(new(pb.LookupRequest)); err != nil {
		t.Error(err)
	}
}

// TestSendAgain checks that each commit sends its own mutations, even if an earlier commit had the
// same number of mutations.
func TestSendAgain(t *testing.T) {
	v := new(Versions)
	for version := int64(3); version < 5; version++ {
		v.Send([]Mutation{{Mutation: datastore.NewUpsert(key(1), Unsent()), Condition: Condition{Version: version,
			Writes: sends(1, version)}}})
		r := &pb.CommitRequest{Mutations: []*pb.Mutation{{Operation: &pb.Mutation_Upsert{Upsert: sends(1, 1)}}}}
		if err := v.Request(r); err != nil || r.Mutations[0].GetBaseVersion() != version ||
			r.Mutations[0].GetUpsert().Properties["N"].GetIntegerValue() != version {
			t.Errorf("%v is sent, %v", r, err)
		}
	}
}

// TestRefused checks which errors of a commit count as conflicts. In a transaction with a
// condition, it is a conflict that an entity exists or is missing.
func TestRefused(t *testing.T) {
	none, version, free := Condition{}, Condition{Version: 3}, Condition{Writes: sends(1, 1), Free: true}
	for _, c := range []struct {
		name       string
		conditions []Condition
		alone      bool
		code, want codes.Code
	}{
		{"it is there", []Condition{none, version}, false, codes.AlreadyExists, codes.Aborted},
		{"it is missing", []Condition{version, none}, false, codes.NotFound, codes.Aborted},
		{"it may not", []Condition{version}, false, codes.PermissionDenied, codes.PermissionDenied},
		{"it is there, and nothing was asked", []Condition{none, free}, false, codes.AlreadyExists,
			codes.AlreadyExists},
		{"it is there, and it is no transaction", []Condition{version}, true, codes.AlreadyExists, codes.AlreadyExists},
	} {
		v := &Versions{alone: c.alone}
		for _, of := range c.conditions {
			v.sends = append(v.sends, Mutation{Deletes: key(1), Condition: of})
		}
		err := status.Error(c.code, "refused")
		if got := v.Refused(err); status.Code(got) != c.want || c.want == c.code && !errors.Is(got, err) {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
