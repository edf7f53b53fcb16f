package dsemu

import (
	"fmt"
	"runtime"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/query"
)

// filled returns a database with n entities of kind K, with properties n and s.
func filled(t *testing.T, n int64) (*Server, *database) {
	t.Helper()
	s := newTestServer(t)
	for first := int64(0); first < n; first += 500 {
		req := &pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_NON_TRANSACTIONAL}
		for id := first; id < min(n, first+500); id++ {
			req.Mutations = append(req.Mutations, &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{
				Key: &pb.Key{
					Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: id + 1}}}},
				Properties: map[string]*pb.Value{"n": entity.Integer(id % 7), "s": entity.Text(fmt.Sprint(id % 3))},
			}}})
		}
		if _, err := s.Commit(t.Context(), req); err != nil {
			t.Fatal(err)
		}
	}
	db, err := s.database("full", "")
	if err != nil {
		t.Fatal(err)
	}
	return s, db
}

// shape returns a query that is ordered by a property. It filters by nothing, and needs the index
// of this property.
func shape(t *testing.T, db *database, property string, descending bool) *query.Query {
	t.Helper()
	o := &pb.PropertyOrder{Property: &pb.PropertyReference{Name: property}, Direction: pb.PropertyOrder_ASCENDING}
	if descending {
		o.Direction = pb.PropertyOrder_DESCENDING
	}
	q, err := query.Parse(db.Database, query.Options{Scatter: 2}, nil,
		&pb.Query{Kind: []*pb.KindExpression{{Name: "K"}}, Order: []*pb.PropertyOrder{o}})
	if err != nil {
		t.Fatal(err)
	}
	return q
}

// TestScanPauses writes while a query is being scanned. The write takes effect during the scan, but
// the query's results do not contain it.
func TestScanPauses(t *testing.T) {
	const n = 20000
	s, db := filled(t, n)
	for name, q := range map[string]*query.Query{"keys": nil, "up": shape(t, db, "n", false),
		"down": shape(t, db, "n", true)} {
		if q == nil {
			var err error
			if q, err = query.Parse(db.Database, query.Options{Scatter: 2}, nil,
				&pb.Query{Kind: []*pb.KindExpression{{Name: "K"}}}); err != nil {
				t.Fatal(err)
			}
		}
		rows, between := 0, -1
		started, written := make(chan bool), make(chan error, 1)
		go func() {
			<-started
			_, err := s.Commit(t.Context(),
				&pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_NON_TRANSACTIONAL,
					Mutations: []*pb.Mutation{
						{Operation: &pb.Mutation_Delete{
							Delete: &pb.Key{
								Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: n / 2}}}}}},
						{Operation: &pb.Mutation_Insert{Insert: &pb.Entity{
							Key: &pb.Key{
								Path: []*pb.Key_PathElement{{Kind: "K",
									IdType: &pb.Key_PathElement_Name{Name: "new " + name}}}},
							Properties: map[string]*pb.Value{"n": entity.Integer(3), "s": entity.Text("x")},
						}}},
					}})
			written <- err
		}()
		db.mu.Lock()
		release, err := db.prepare(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		at := db.lastCommit
		end := db.scan(at)
		want := 0
		for _, k := range db.stored(q) {
			for r, more := k.Keys(), true; more; {
				if want == 0 {
					r.Seek("")
				}
				if _, ok := r.Record().At(at); ok {
					want++
				}
				more = r.Next()
			}
		}
		db.scanRows(q, at, func(query.Row) bool {
			if rows++; rows == 100 {
				close(started)
				for !db.mu.Wanted() {
					runtime.Gosched()
				}
			}
			if between < 0 && db.lastCommit > at {
				between = rows
			}
			return true
		})
		end()
		release()
		db.mu.Unlock()
		if err := <-written; err != nil {
			t.Fatal(err)
		}
		if between < 0 || rows != want {
			t.Errorf("%s: the other came at row %d of %d, want %d", name, between, rows, want)
		}
		// The entities that were deleted for the last round are put again.
		if _, err := s.Commit(t.Context(),
			&pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_NON_TRANSACTIONAL, Mutations: []*pb.Mutation{
				{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{
					Key: &pb.Key{
						Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: n / 2}}}},
					Properties: map[string]*pb.Value{"n": entity.Integer(3), "s": entity.Text("x")},
				}}},
			}}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestQueryWaitsForIndex runs a query while the index that it needs is being built. The query waits
// for the index, and other calls do not wait.
func TestQueryWaitsForIndex(t *testing.T) {
	const n = 1000
	s, db := filled(t, n)
	q := shape(t, db, "n", false)
	k := db.kind("", "K")
	db.mu.Lock()
	b := k.Build(q.Needs()[0].Definition)
	b.Next()
	db.mu.Unlock()
	answered := make(chan int, 1)
	go func() {
		resp, err := s.RunAggregationQuery(t.Context(), &pb.RunAggregationQueryRequest{ProjectId: "full",
			QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
				AggregationQuery: &pb.AggregationQuery{
					QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: &pb.Query{
						Kind:  []*pb.KindExpression{{Name: "K"}},
						Order: []*pb.PropertyOrder{{Property: &pb.PropertyReference{Name: "n"}}},
					}},
					Aggregations: []*pb.AggregationQuery_Aggregation{
						{Operator: &pb.AggregationQuery_Aggregation_Count_{
							Count: new(pb.AggregationQuery_Aggregation_Count)}}},
				},
			}})
		if err != nil {
			t.Error(err)
		}
		answered <- int(
			resp.GetBatch().GetAggregationResults()[0].GetAggregateProperties()["property_1"].GetIntegerValue())
	}()
	key := &pb.Key{Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: 1}}}}
	for range 3 {
		if resp, err := s.Lookup(t.Context(), &pb.LookupRequest{ProjectId: "full", Keys: []*pb.Key{key}}); err != nil ||
			len(resp.Found) != 1 {
			t.Fatalf("a lookup while the index is built: %v, %v", resp, err)
		}
	}
	if _, err := s.Commit(t.Context(), &pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_NON_TRANSACTIONAL,
		Mutations: []*pb.Mutation{
			{Operation: &pb.Mutation_Delete{Delete: key}},
		}}); err != nil {
		t.Fatal(err)
	}
	select {
	case <-answered:
		t.Fatal("the query was answered before its index is there")
	default:
	}
	b.Work(func() {})
	db.mu.Lock()
	for b.Next() {
		b.Work(func() {})
	}
	db.mu.Unlock()
	if got := <-answered; got != n-1 {
		t.Errorf("the query counts %d, want %d", got, n-1)
	}
}

// TestManyShapes runs more queries that each need an index of their own than the memory for indexes
// allows, twice. All are answered, and the indexes of the last queries exist.
func TestManyShapes(t *testing.T) {
	const n = 300
	s, db := filled(t, n)
	s.opts.IndexMemory, db.opts.IndexMemory = 10*n*100, 10*n*100
	shapes := 0
	for range 2 {
		for _, property := range []string{"n", "s"} {
			for _, equal := range []string{"", "n", "s"} {
				for _, by := range []string{"n", "s", "__key__"} {
					for _, direction := range []pb.PropertyOrder_Direction{pb.PropertyOrder_ASCENDING,
						pb.PropertyOrder_DESCENDING} {
						q := &pb.Query{Kind: []*pb.KindExpression{{Name: "K"}},
							Order: []*pb.PropertyOrder{{Property: &pb.PropertyReference{Name: by},
								Direction: direction}}}
						if by != property {
							q.Order = append(q.Order,
								&pb.PropertyOrder{Property: &pb.PropertyReference{Name: property}})
						}
						if equal != "" {
							q.Filter = &pb.Filter{
								FilterType: &pb.Filter_PropertyFilter{PropertyFilter: &pb.PropertyFilter{
									Property: &pb.PropertyReference{Name: equal},
									Op:       pb.PropertyFilter_GREATER_THAN_OR_EQUAL, Value: entity.Integer(0),
								}}}
						}
						resp, err := s.RunQuery(t.Context(),
							&pb.RunQueryRequest{ProjectId: "full", QueryType: &pb.RunQueryRequest_Query{Query: q}})
						if err != nil {
							t.Fatal(err)
						}
						if len(resp.Batch.EntityResults) == 0 {
							t.Errorf("no results: %v", q)
						}
						shapes++
						parsed, err := query.Parse(db.Database, query.Options{Scatter: 2}, nil, q)
						if err != nil {
							t.Fatal(err)
						}
						for _, d := range parsed.Needs() {
							if !db.kind("", "K").Indexed(d.Definition) {
								t.Errorf("the index that was used just now is not there: %v", d)
							}
						}
					}
				}
			}
		}
	}
	if most := db.opts.IndexMemory; db.totals.Indexes > most {
		t.Errorf("%d shapes have indexes of %d bytes, want at most %d", shapes, db.totals.Indexes, most)
	}
}

// TestConflictsFoundWithPauses runs transactions that query the entities with one value, while
// others write entities with this value and others. It checks that a commit conflicts exactly if a
// write changed the query's result. Such a write may come first, in the middle, or in a pause of
// the check.
func TestConflictsFoundWithPauses(t *testing.T) {
	s, db := filled(t, 2000)
	// write writes others entities with the value other, and after these, in the same commit, the
	// entity id with the value n.
	write := func(id, n int64, others int64, other int64) {
		t.Helper()
		req := &pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_NON_TRANSACTIONAL}
		for i := range others + 1 {
			value := other
			if i == others {
				value = n
			}
			req.Mutations = append(req.Mutations, &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{
				Key: &pb.Key{
					Path: []*pb.Key_PathElement{{Kind: "K", IdType: &pb.Key_PathElement_Id{Id: id - others + i}}}},
				Properties: map[string]*pb.Value{"n": entity.Integer(value), "s": entity.Text(fmt.Sprint(id, n))},
			}}})
		}
		if _, err := s.Commit(t.Context(), req); err != nil {
			t.Error(err)
		}
	}
	const unseen, seen = 100, 5 // values of n that the query does not select, and that it selects
	turn := int64(0)
	for name, conflicts := range map[string]func(i int) bool{
		"none": func(int) bool { return false }, "the first": func(i int) bool { return i == 0 },
		"in the middle":     func(i int) bool { return i == 500 },
		"at a pause":        func(i int) bool { return i == 1001 },
		"at the last pause": func(i int) bool { return i >= 1000 && i%7 == 0 },
	} {
		begun, err := s.BeginTransaction(t.Context(), &pb.BeginTransactionRequest{ProjectId: "full"})
		if err != nil {
			t.Fatal(err)
		}
		query := &pb.Query{
			Kind: []*pb.KindExpression{{Name: "K"}}, Filter: testFilter("n", pb.PropertyFilter_EQUAL,
				entity.Integer(seen)),
		}
		for more := true; more; {
			resp, err := s.RunQuery(t.Context(), &pb.RunQueryRequest{
				ProjectId: "full", QueryType: &pb.RunQueryRequest_Query{Query: query},
				ReadOptions: &pb.ReadOptions{
					ConsistencyType: &pb.ReadOptions_Transaction{Transaction: begun.Transaction}},
			})
			if err != nil {
				t.Fatal(err)
			}
			query.StartCursor, more = resp.Batch.EndCursor, resp.Batch.MoreResults == pb.QueryResultBatch_NOT_FINISHED
		}
		change := func(i int) {
			turn++
			if conflicts(i) {
				write(3000+turn, seen, 200, unseen) // this write changes the query's result
			} else {
				write(100000+turn, unseen, 0, 0)
			}
		}
		for i := range 1000 {
			change(i)
		}
		db.mu.Lock()
		tx := db.transactions[string(begun.Transaction)]
		ended := make(chan bool)
		go func() { // writes in each pause of the check
			for i := range 20 {
				change(1000 + i)
			}
			close(ended)
		}()
		for !db.mu.Wanted() {
			runtime.Gosched()
		}
		before := tx.checked()
		db.checkEarly(tx)
		looked := tx.checked() > before
		db.mu.Unlock()
		<-ended
		_, err = s.Commit(t.Context(), &pb.CommitRequest{ProjectId: "full", Mode: pb.CommitRequest_TRANSACTIONAL,
			TransactionSelector: &pb.CommitRequest_Transaction{Transaction: begun.Transaction},
			Mutations: []*pb.Mutation{{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{
				Key: &pb.Key{Path: []*pb.Key_PathElement{{Kind: "Other", IdType: &pb.Key_PathElement_Id{Id: turn}}}},
			}}}}})
		if want := name != "none"; want != (status.Code(err) == codes.Aborted) {
			t.Errorf("a change that conflicts: %s, and the commit returns %v", name, err)
		}
		if looked != (name != "the first") {
			t.Errorf("a change that conflicts: %s, and the changes were looked at early: %v", name, looked)
		}
		// Removes the entities from the query's result, for the next case.
		for id := 3001 + turn - 1020; id <= 3000+turn; id++ {
			write(id, unseen, 0, 0)
		}
	}
}
