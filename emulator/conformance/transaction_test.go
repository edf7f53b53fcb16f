package conformance

import (
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

func (e *env) begin(o *pb.TransactionOptions) []byte {
	e.Helper()
	resp, err := e.raw.BeginTransaction(e.Context(), &pb.BeginTransactionRequest{ProjectId: e.project,
		TransactionOptions: o})
	e.must(err)
	return resp.Transaction
}

func (e *env) commitIn(tx []byte, mutations ...*pb.Mutation) error {
	_, err := e.raw.Commit(e.Context(), &pb.CommitRequest{
		ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
		TransactionSelector: &pb.CommitRequest_Transaction{Transaction: tx}, Mutations: mutations,
	})
	return err
}

func (e *env) rollback(tx []byte) error {
	_, err := e.raw.Rollback(e.Context(), &pb.RollbackRequest{ProjectId: e.project, Transaction: tx})
	return err
}

func (e *env) lookup(o *pb.ReadOptions, kind, name string) (string, error) {
	e.Helper()
	resp, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, ReadOptions: o,
		Keys: []*pb.Key{e.name(kind, name)}})
	if err != nil {
		return outcome(err), err
	}
	if len(resp.Found) == 0 {
		return "missing", nil
	}
	return showAll(resp.Found[0].Entity.Properties), nil
}

func inTx(tx []byte) *pb.ReadOptions {
	return &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_Transaction{Transaction: tx}}
}

func atTime(t time.Time) *pb.ReadOptions {
	return &pb.ReadOptions{
		ConsistencyType: &pb.ReadOptions_ReadTime{ReadTime: timestamppb.New(t.Truncate(time.Microsecond))}}
}

var readOnly = &pb.TransactionOptions{
	Mode: &pb.TransactionOptions_ReadOnly_{ReadOnly: new(pb.TransactionOptions_ReadOnly)},
}

// Reasons for differences that several cases have.
const (
	waits        = "the Firestore emulator locks what a transaction reads: the other writer would wait for a long time"
	ignoresTimes = "the classic emulator ignores read_time"
)

var transactionCases = []conformanceCase{
	{name: "commit", doc: "makes its mutations visible", run: func(e *env) string {
		tx := e.begin(nil)
		err := e.commitIn(tx, ups(e))
		return outcome(err) + " " + e.get("K", "a")
	}, want: "OK {n=3}"},
	{name: "rollback", doc: "ends a transaction without effect", run: func(e *env) string {
		tx := e.begin(nil)
		err := e.rollback(tx)
		return outcome(err) + " " + outcome(e.commitIn(tx, ups(e))) + " " + e.get("K", "a")
	}, want: "OK InvalidArgument missing"},
	{name: "commit twice", doc: "a transaction commits once", run: func(e *env) string {
		tx := e.begin(nil)
		return outcome(e.commitIn(tx, ups(e))) + " " + outcome(e.commitIn(tx, upd(e)))
	}, want: "OK InvalidArgument"},
	{name: "commit without a transaction", doc: "TRANSACTIONAL needs one", run: func(e *env) string {
		_, err := e.raw.Commit(e.Context(),
			&pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
				Mutations: []*pb.Mutation{ups(e)}})
		return outcome(err)
	}, want: "InvalidArgument"},
	{name: "unknown transaction", doc: "is refused", run: func(e *env) string {
		return outcome(e.commitIn([]byte("nonsense"), ups(e)))
	}, want: "InvalidArgument"},
	{name: "own writes", doc: "a transaction does not see what it is about to write: reads come first",
		run: func(e *env) string {
			e.put("K", "a", "n", 1)
			tx := e.begin(nil)
			got, err := e.lookup(inTx(tx), "K", "a")
			e.must(err)
			e.must(e.commitIn(tx, ups(e)))
			return got + " " + e.get("K", "a")
		}, want: "{n=1} {n=3}"},
	{name: "read-only", doc: "can't write", run: func(e *env) string {
		return outcome(e.commitIn(e.begin(readOnly), ups(e)))
	}, want: "InvalidArgument"},
	{name: "commit of a read-only transaction", doc: "ends it", run: func(e *env) string {
		tx := e.begin(readOnly)
		_, err := e.lookup(inTx(tx), "K", "a")
		e.must(err)
		return outcome(e.commitIn(tx))
	}, want: "OK",
		firestore: &difference{"InvalidArgument", "the Firestore emulator wants such transactions rolled back"}},
	{name: "snapshot of a read-only transaction", doc: "all its reads see one moment", run: func(e *env) string {
		e.put("K", "a", "n", 1)
		tx := e.begin(readOnly)
		before, err := e.lookup(inTx(tx), "K", "a")
		e.must(err)
		e.put("K", "a", "n", 2)
		e.put("K", "b", "n", 2)
		after, err := e.lookup(inTx(tx), "K", "a")
		e.must(err)
		other, err := e.lookup(inTx(tx), "K", "b")
		e.must(err)
		return before + " " + after + " " + other
	}, want: "{n=1} {n=1} missing",
		classic: &difference{"Aborted", "in the classic emulator a read-only transaction holds up writers"}},
	{name: "begun by a lookup", doc: "new_transaction returns the transaction of the read", run: func(e *env) string {
		e.put("K", "a", "n", 1)
		resp, err := e.raw.Lookup(e.Context(),
			&pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{e.name("K", "a")},
				ReadOptions: &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_NewTransaction{
					NewTransaction: new(pb.TransactionOptions)}}})
		if err != nil {
			return outcome(err)
		}
		return outcome(e.commitIn(resp.Transaction, ups(e))) + " " + e.get("K", "a")
	}, want: "OK {n=3}",
		firestore: &difference{"Aborted {n=1}", "the Firestore emulator has the transaction conflict with itself"}},
	{name: "begun by a query", doc: "new_transaction returns the transaction of the read", run: func(e *env) string {
		e.put("P", "a", "n", 1)
		resp, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project,
				QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}},
				ReadOptions: &pb.ReadOptions{ConsistencyType: &pb.ReadOptions_NewTransaction{
					NewTransaction: new(pb.TransactionOptions)}}})
		if err != nil {
			return outcome(err)
		}
		return names(resp) + " " + outcome(e.commitIn(resp.Transaction, ups(e)))
	}, want: "a OK"},
	{name: "single use", doc: "a transaction of one commit", run: func(e *env) string {
		_, err := e.raw.Commit(e.Context(),
			&pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
				Mutations: []*pb.Mutation{ups(e)},
				TransactionSelector: &pb.CommitRequest_SingleUseTransaction{
					SingleUseTransaction: new(pb.TransactionOptions)}})
		return outcome(err) + " " + e.get("K", "a")
	}, want: "OK {n=3}"},
	{name: "lost update", doc: "of two transactions that read and write one entity, the later commit is aborted",
		run: func(e *env) string {
			if e.product == "firestore" {
				return waits
			}
			e.put("K", "a", "n", 1)
			first, second := e.begin(nil), e.begin(nil)
			for _, tx := range [][]byte{first, second} {
				_, err := e.lookup(inTx(tx), "K", "a")
				e.must(err)
			}
			return outcome(e.commitIn(first, ups(e))) + " " + outcome(e.commitIn(second, upd(e))) + " " +
				e.get("K", "a")
		}, want: "OK Aborted {n=3}", firestore: &difference{waits, waits}},
	{name: "phantom", doc: "a query is a read: an entity that joins it is a conflict", run: func(e *env) string {
		if e.product == "firestore" {
			return waits
		}
		letters(e)
		tx := e.begin(nil)
		_, err := e.raw.RunQuery(e.Context(), &pb.RunQueryRequest{ProjectId: e.project, ReadOptions: inTx(tx),
			QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
		e.must(err)
		e.put("P", "new", "n", 1)
		return outcome(e.commitIn(tx, ups(e)))
	}, want: "Aborted", classic: &difference{"OK", "the classic emulator does not see phantoms"},
		firestore: &difference{waits, waits}},
	{name: "blind writes", doc: "who reads nothing conflicts with nobody", run: func(e *env) string {
		first, second := e.begin(nil), e.begin(nil)
		return outcome(e.commitIn(first, ups(e))) + " " + outcome(e.commitIn(second, upd(e))) + " " + e.get("K", "a")
	}, want: "OK OK {n=2}"},
	{name: "query without ancestor", doc: "transactions run any query", run: func(e *env) string {
		letters(e)
		tx := e.begin(nil)
		resp, err := e.raw.RunQuery(e.Context(), &pb.RunQueryRequest{ProjectId: e.project, ReadOptions: inTx(tx),
			QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
		e.must(err)
		return fmt.Sprint(len(resp.Batch.EntityResults), " ", outcome(e.rollback(tx)))
	}, want: "9 OK"},
	{name: "read time", doc: "reads what there was at a time", run: func(e *env) string {
		first, err := e.commitAtomically(upsert(e.name("K", "a"), props("n", 1)))
		e.must(err)
		e.put("K", "a", "n", 2)
		got, err := e.lookup(atTime(first.CommitTime.AsTime()), "K", "a")
		if err != nil {
			return got
		}
		return got + " " + e.get("K", "a")
	}, want: "{n=1} {n=2}",
		classic: &difference{"InvalidArgument", "the classic emulator returns no commit times, and ignores read_time"}},
	{name: "query with read time", doc: "queries, too", run: func(e *env) string {
		letters(e)
		resp, err := e.commitAtomically(remove(e.name("P", "a")))
		e.must(err)
		e.put("P", "new", "n", 1)
		old, err := e.raw.RunQuery(e.Context(),
			&pb.RunQueryRequest{ProjectId: e.project,
				ReadOptions: atTime(resp.CommitTime.AsTime().Add(-time.Microsecond)),
				QueryType:   &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: kindP}}})
		e.must(err)
		return names(old) + "; " + e.keys(all)
	}, want: "a b c d e f g h i; b c d e f g h i new",
		classic: &difference{"*", "the classic emulator returns no commit times, and ignores read_time"}},
	{name: "read-only transaction with read time", doc: "sees that time", run: func(e *env) string {
		first, err := e.commitAtomically(upsert(e.name("K", "a"), props("n", 1)))
		e.must(err)
		e.put("K", "a", "n", 2)
		tx := e.begin(&pb.TransactionOptions{
			Mode: &pb.TransactionOptions_ReadOnly_{
				ReadOnly: &pb.TransactionOptions_ReadOnly{ReadTime: first.CommitTime}}})
		got, _ := e.lookup(inTx(tx), "K", "a")
		return got
	}, want: "{n=1}", classic: &difference{"*", "the classic emulator returns no commit times, and ignores read_time"}},
	{name: "read time in the future", doc: "is refused", run: func(e *env) string {
		got, _ := e.lookup(atTime(time.Now().Add(time.Hour)), "K", "a")
		return got
	}, want: "InvalidArgument", classic: &difference{"missing", ignoresTimes}},
	{name: "read time before the retention", doc: "is refused", run: func(e *env) string {
		got, _ := e.lookup(atTime(time.Now().Add(-48*time.Hour)), "K", "a")
		return got
	}, want: "FailedPrecondition", firestore: &difference{"missing", "the Firestore emulator has no retention"},
		classic: &difference{"missing", ignoresTimes}},
	{name: "another database", doc: "databases of a project are apart", run: func(e *env) string {
		e.put("K", "a", "n", 1)
		k := &pb.Key{Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Name{Name: "a"}}}}
		resp, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, DatabaseId: "other",
			Keys: []*pb.Key{k}})
		if err != nil {
			return outcome(err)
		}
		return fmt.Sprint(len(resp.Found), " found")
	}, want: "0 found"},
	{name: "contention", doc: "clients that retry all succeed", run: func(e *env) string {
		e.put("K", "a", "n", 0)
		const clients = 3
		errs := make(chan error, clients)
		for range clients {
			go func() {
				_, err := e.client.RunInTransaction(e.Context(), func(tx *datastore.Transaction) error {
					var properties datastore.PropertyList
					k := datastore.NameKey("K", "a", nil)
					if err := tx.Get(k, &properties); err != nil {
						return err
					}
					properties[0].Value = properties[0].Value.(int64) + 1
					_, err := tx.Put(k, &properties)
					return err
				}, datastore.MaxAttempts(100))
				errs <- err
			}()
		}
		for range clients {
			e.must(<-errs)
		}
		return e.get("K", "a")
	}, want: "{n=3}"},
}
