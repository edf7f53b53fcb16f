package conformance

import (
	"fmt"
	"maps"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/googletest"
	"github.com/scattermap/scattermap/internal/testflag"
)

// TestMetamorphic asks the embedded Datastore the same question in two ways, for random queries,
// and compares the answers. So it needs no second Datastore. For example, an OR is the union of its
// parts, reversed orders reverse the results, and a count is the number of results.
func TestMetamorphic(t *testing.T) {
	seed := testflag.Seed(t)
	done := make(map[string]int)
	failed := make(map[string]bool)
	total, refused := 0, 0
	for n := uint64(0); total < *testflag.Comparisons; n++ {
		rng := rand.New(rand.NewPCG(seed+n, 0))
		local := emulator.ForTest(t, &emulator.Options{QueryBatchSize: pick(rng, 1, 3, 7, 300),
			DatastoreAddr: "127.0.0.1:0"})
		e := &env{T: t, product: "embedded", project: googletest.Project()}
		e.connect(local.DatastoreAddr())
		w := &world{env: e, rng: rng, g: &generator{rng: rng}}
		w.fill()
		for range 60 {
			if rng.IntN(8) == 0 {
				w.step()
			}
			name, same := w.compare()
			if same == "refused" {
				refused++
				continue
			}
			done[name]++
			if total++; same != "" && !failed[name] {
				failed[name] = true // report each relation only once
				t.Errorf("seed %d: %s: %s", seed+n, name, same)
				for _, r := range w.list(&pb.Query{Kind: []*pb.KindExpression{{Name: "D"}}}, nil) {
					t.Logf("  entity %s %s", r.key, r.values)
				}
			}
		}
		e.conn.Close()
		local.Close()
	}
	t.Logf("%d comparisons; %d queries were refused", total, refused)
	for _, name := range slices.Sorted(maps.Keys(relations)) {
		if t.Logf("%5d %s", done[name], name); done[name] == 0 {
			t.Errorf("no comparison %q in %d", name, total)
		}
	}
}

// A world is a database for random queries. Its entities have few different values, so that queries
// find some of them.
type world struct {
	*env
	rng *rand.Rand
	g   *generator
	// asked is the last query, with its read time and its answer in the next fields.
	asked  *pb.Query
	at     *timestamppb.Timestamp
	answer []row
}

// fill writes random entities: some of all forms, and some with simple values that many filters
// match.
func (w *world) fill() {
	for range 25 {
		w.g.write().run(w.env)
	}
	for range 20 {
		var list []any
		for range w.rng.IntN(4) {
			list = append(list, w.scalar())
		}
		if w.rng.IntN(8) == 0 { // only a few are this long, because an index limits the number of combinations
			for i := range 60 {
				list = append(list, i/2-20)
			}
		}
		p := props("p", w.scalar(), "q", w.scalar(), "n", w.rng.IntN(4), "m", list, "in", props("p", w.scalar()))
		_, err := w.commit(upsert(w.keyOf(w.g.key()), p))
		w.env.must(err)
	}
}

// scalar returns a random value. In half of the cases, it is one of five simple ones.
func (w *world) scalar() any {
	if w.rng.IntN(2) == 0 {
		return pick[any](w.rng, 0, 1, 2, 3, "x")
	}
	return w.g.scalar()
}

func (w *world) step() {
	w.g.write().run(w.env)
}

// A row is one result of a query: its key, its properties as text, and its cursor.
type row struct{ key, values, cursor string }

// A refusal is the panic that ends a comparison if the Datastore refuses the query, or if the
// relation does not apply to it.
type refusal struct{ error }

// A lateRefusal is the panic that ends a comparison with a failure: the Datastore has answered a
// query, but refuses an equivalent one.
type lateRefusal string

// list reads all results of a query.
func (w *world) list(q *pb.Query, o *pb.ReadOptions) []row {
	var rows []row
	q = proto.CloneOf(q)
	for {
		resp, err := w.raw.RunQuery(w.Context(), &pb.RunQueryRequest{ProjectId: w.project, ReadOptions: o,
			QueryType: &pb.RunQueryRequest_Query{Query: q}})
		if err != nil {
			panic(refusal{err})
		}
		for _, r := range resp.Batch.EntityResults {
			rows = append(rows, row{fullKey(r.Entity.Key), showAll(r.Entity.Properties), string(r.Cursor)})
		}
		if resp.Batch.MoreResults != pb.QueryResultBatch_NOT_FINISHED {
			return rows
		}
		q.StartCursor = resp.Batch.EndCursor
		q.Offset -= resp.Batch.SkippedResults
		if q.Limit != nil {
			q.Limit.Value -= int32(len(resp.Batch.EntityResults))
		}
	}
}

func keysOfRows(rows []row) []string {
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i] = r.key
	}
	return all
}

func rowsAsText(rows []row) []string {
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i] = r.key + r.values
	}
	return all
}

func sortedSet(all []string) []string { return slices.Compact(slices.Sorted(slices.Values(all))) }

// differ describes how two lists differ. It returns "" if they are equal.
func differ(text string, a, b []string) string {
	if slices.Equal(a, b) {
		return ""
	}
	return fmt.Sprintf("%s\n one   %d %q\n other %d %q", text, len(a), a, len(b), b)
}

var inequalities = []pb.PropertyFilter_Operator{
	pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_LESS_THAN_OR_EQUAL, pb.PropertyFilter_GREATER_THAN,
	pb.PropertyFilter_GREATER_THAN_OR_EQUAL,
}

func filterOn(name string, op pb.PropertyFilter_Operator, v any) *pb.Filter {
	return &pb.Filter{FilterType: &pb.Filter_PropertyFilter{PropertyFilter: &pb.PropertyFilter{
		Property: &pb.PropertyReference{Name: name}, Op: op, Value: value(v),
	}}}
}

func composite(op pb.CompositeFilter_Operator, filters ...*pb.Filter) *pb.Filter {
	switch len(filters) {
	case 0:
		return nil
	case 1:
		return filters[0]
	}
	return &pb.Filter{FilterType: &pb.Filter_CompositeFilter{CompositeFilter: &pb.CompositeFilter{Op: op,
		Filters: filters}}}
}

func and(filters ...*pb.Filter) *pb.Filter {
	return composite(pb.CompositeFilter_AND, slices.DeleteFunc(filters, func(f *pb.Filter) bool { return f == nil })...)
}

func either(filters ...*pb.Filter) *pb.Filter { return composite(pb.CompositeFilter_OR, filters...) }

// single has the names of properties that have at most one value.
var single = []string{"p", "q", "n", "in.p"}

func (w *world) name() string { return pick(w.rng, "p", "q", "n", "in.p", "m", "m") }

func (w *world) keyValue() *pb.Key { return &pb.Key{Path: w.g.key()} }

// leaf returns a random condition on one property.
func (w *world) leaf() *pb.Filter {
	switch w.rng.IntN(10) {
	case 0:
		return filterOn("__key__", pick(w.rng, append(inequalities, pb.PropertyFilter_EQUAL)...), w.keyValue())
	case 1, 2, 3:
		return filterOn(w.name(), pick(w.rng, inequalities...), w.scalar())
	case 4:
		return filterOn(w.name(), pb.PropertyFilter_IN, []any{w.scalar(), w.scalar(), w.scalar()})
	}
	return w.equality()
}

func (w *world) equality() *pb.Filter { return filterOn(w.name(), pb.PropertyFilter_EQUAL, w.scalar()) }

// part returns a random condition, or an OR of several.
func (w *world) part() *pb.Filter {
	if w.rng.IntN(4) > 0 {
		return w.leaf()
	}
	return either(w.leaf(), and(w.leaf(), w.leaf()))
}

// wild returns a random query that may use all features of the embedded Datastore.
func (w *world) wild() *pb.Query {
	q := &pb.Query{Kind: []*pb.KindExpression{{Name: "D"}}}
	var filters []*pb.Filter
	for range w.rng.IntN(3) {
		filters = append(filters, w.part())
	}
	if w.rng.IntN(3) == 0 {
		root := w.g.key()[:1]
		filters = append(filters, filterOn("__key__", pb.PropertyFilter_HAS_ANCESTOR, &pb.Key{Path: root}))
	}
	q.Filter = and(filters...)
	for range w.rng.IntN(3) {
		w.orderBy(q, w.name(), w.rng.IntN(2) == 0)
	}
	if w.rng.IntN(3) == 0 {
		w.orderBy(q, "__key__", w.rng.IntN(2) == 0)
	}
	return q
}

func ordersBy(q *pb.Query, name string) bool {
	return slices.ContainsFunc(q.Order, func(o *pb.PropertyOrder) bool { return o.Property.Name == name })
}

func (w *world) orderBy(q *pb.Query, name string, descending bool) {
	if ordersBy(q, name) {
		return
	}
	o := &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name}, Direction: pb.PropertyOrder_ASCENDING}
	if descending {
		o.Direction = pb.PropertyOrder_DESCENDING
	}
	q.Order = append(q.Order, o)
}

// ordered adds explicit orders to a query: those that its filter implies, and an order by key. So
// another filter does not change the order of the results.
func (w *world) ordered(q *pb.Query) *pb.Query {
	q = proto.CloneOf(q)
	eachLeaf(q.Filter, func(f *pb.PropertyFilter) {
		if slices.Contains(inequalities, f.Op) && f.Property.Name != "__key__" {
			w.orderBy(q, f.Property.Name, false)
		}
	})
	w.orderBy(q, "__key__", w.rng.IntN(2) == 0)
	return q
}

func eachLeaf(f *pb.Filter, visit func(*pb.PropertyFilter)) {
	for _, sub := range f.GetCompositeFilter().GetFilters() {
		eachLeaf(sub, visit)
	}
	if f.GetPropertyFilter() != nil {
		visit(f.GetPropertyFilter())
	}
}

// with returns a copy of a query with another filter.
func with(q *pb.Query, f *pb.Filter) *pb.Query {
	q = proto.CloneOf(q)
	q.Filter = f
	return q
}

// compare makes one random comparison. It returns the name of the relation, and how the answers
// differ, or "" if they agree.
func (w *world) compare() (name, difference string) {
	name = pick(w.rng, slices.Sorted(maps.Keys(relations))...)
	defer func() {
		if r := recover(); r != nil {
			switch r := r.(type) {
			case refusal:
				difference = "refused"
			case lateRefusal:
				difference = string(r)
			default:
				panic(r)
			}
		}
	}()
	return name, relations[name](w)
}

// must reads the results of a query that the Datastore must not refuse, because it has answered an
// equivalent one.
func (w *world) must(text string, q *pb.Query, o *pb.ReadOptions) []row {
	defer func() {
		r := recover()
		if r, ok := r.(refusal); ok && !strings.Contains(r.Error(), "disjunctions") {
			panic(lateRefusal(fmt.Sprintf("%s: %v: refused: %v", text, q, r)))
		}
		if r != nil {
			panic(r)
		}
	}()
	return w.list(q, o)
}

// relations has the comparisons by name. Each makes a random query in two ways, and returns "" if
// the answers agree.
var relations = map[string]func(*world) string{
	"an OR is the union of its parts": func(w *world) string {
		a, b := w.leaf(), w.leaf()
		rest := w.wild()
		whole := w.ordered(with(rest, and(either(a, b), rest.Filter)))
		all := keysOfRows(w.list(whole, nil))
		parts := append(keysOfRows(w.must("part", with(whole, and(a, rest.Filter)), nil)),
			keysOfRows(w.must("part", with(whole, and(b, rest.Filter)), nil))...)
		return differ(whole.String(), sortedSet(all), sortedSet(parts)) + differ("once each",
			slices.Sorted(slices.Values(all)), sortedSet(all))
	},
	"an AND with an equality is the intersection": func(w *world) string {
		q, eq := w.ordered(w.wild()), w.equality()
		if on := eq.GetPropertyFilter().Property.Name; on == "m" && ordersBy(q, on) {
			panic(refusal{}) // an inequality on the array m would also apply to the equality's value
		}
		whole := with(q, and(q.Filter, eq))
		both := sortedSet(keysOfRows(w.list(whole, nil)))
		one, other := keysOfRows(w.must("one", q, nil)),
			keysOfRows(w.must("other", with(&pb.Query{Kind: q.Kind}, eq), nil))
		return differ(whole.String(), both, slices.DeleteFunc(sortedSet(one), func(k string) bool {
			return !slices.Contains(other, k)
		}))
	},
	"IN is an OR of equalities": func(w *world) string {
		name, values := w.name(), []any{w.scalar(), w.scalar(), w.scalar()}
		rest := w.wild()
		var parts []*pb.Filter
		for _, v := range values {
			parts = append(parts, filterOn(name, pb.PropertyFilter_EQUAL, v))
		}
		in := with(rest, and(filterOn(name, pb.PropertyFilter_IN, values), rest.Filter))
		return differ(in.String(), keysOfRows(w.list(in, nil)),
			keysOfRows(w.must("or", with(rest, and(either(parts...), rest.Filter)), nil)))
	},
	"!= is less or greater": func(w *world) string {
		name, v := pick(w.rng, append(single, "m", "__key__")...), w.scalar()
		if name == "__key__" {
			v = w.keyValue()
		}
		rest := w.wild()
		q := w.ordered(with(rest,
			and(either(filterOn(name, pb.PropertyFilter_LESS_THAN, v), filterOn(name, pb.PropertyFilter_GREATER_THAN,
				v)), rest.Filter)))
		not := with(q, and(filterOn(name, pb.PropertyFilter_NOT_EQUAL, v), rest.Filter))
		all := keysOfRows(w.list(q, nil))
		if len(all) == 0 {
			return differ(not.String(), keysOfRows(w.must("not", not, nil)), all)
		}
		return differ(not.String(), sortedSet(keysOfRows(w.must("not", not, nil))), sortedSet(all))
	},
	"NOT IN is !=, all of them": func(w *world) string {
		name, a, b := pick(w.rng, single...), w.scalar(), w.scalar()
		q := &pb.Query{Kind: []*pb.KindExpression{{Name: "D"}}, Filter: filterOn(name, pb.PropertyFilter_NOT_IN,
			[]any{a, b})}
		one := keysOfRows(w.must("one", with(q, filterOn(name, pb.PropertyFilter_NOT_EQUAL, a)), nil))
		other := keysOfRows(w.must("other", with(q, filterOn(name, pb.PropertyFilter_NOT_EQUAL, b)), nil))
		return differ(q.String(), keysOfRows(w.list(q, nil)), slices.DeleteFunc(one, func(k string) bool {
			return !slices.Contains(other, k)
		}))
	},
	"reversed orders reverse the results": func(w *world) string {
		q := w.ordered(w.wild())
		for _, o := range q.Order {
			if o.Property.Name == "m" {
				// an array sorts by its least value in one direction, and by its greatest in the
				// other
				panic(refusal{})
			}
		}
		back := proto.CloneOf(q)
		for _, o := range back.Order {
			o.Direction = pb.PropertyOrder_ASCENDING + pb.PropertyOrder_DESCENDING - o.Direction
		}
		forth := keysOfRows(w.list(q, nil))
		slices.Reverse(forth)
		return differ(q.String(), forth, keysOfRows(w.must("back", back, nil)))
	},
	"orders do not choose": func(w *world) string {
		q := w.wild()
		q.Order = nil
		all := keysOfRows(w.list(q, nil))
		by := proto.CloneOf(q)
		w.orderBy(by, "__key__", w.rng.IntN(2) == 0)
		return differ(by.String(), sortedSet(all),
			sortedSet(keysOfRows(w.must("ordered", by, nil)))) + differ("once each", slices.Sorted(slices.Values(all)),
			sortedSet(all))
	},
	"keys are in order": func(w *world) string {
		q := w.wild()
		q.Order = nil
		w.orderBy(q, "__key__", w.rng.IntN(2) == 0)
		all := keysOfRows(w.list(q, nil))
		kind := proto.CloneOf(q)
		kind.Filter = nil
		in := slices.DeleteFunc(keysOfRows(w.must("kind", kind, nil)), func(k string) bool {
			return !slices.Contains(all, k)
		})
		return differ(q.String(), all, in)
	},
	"keys below and above are all": func(w *world) string {
		q, key := w.ordered(w.wild()), w.keyValue()
		all := keysOfRows(w.list(q, nil))
		below, above := pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_GREATER_THAN_OR_EQUAL
		if w.rng.IntN(2) == 0 {
			below, above = pb.PropertyFilter_LESS_THAN_OR_EQUAL, pb.PropertyFilter_GREATER_THAN
		}
		low := keysOfRows(w.must("below", with(q, and(q.Filter, filterOn("__key__", below, key))), nil))
		high := keysOfRows(w.must("above", with(q, and(q.Filter, filterOn("__key__", above, key))), nil))
		if len(q.Order) > 1 {
			return differ(fmt.Sprint(key, q), sortedSet(all), sortedSet(append(low, high...))) + differ("twice",
				slices.Sorted(slices.Values(all)), slices.Sorted(slices.Values(append(low, high...))))
		}
		if q.Order[0].Direction == pb.PropertyOrder_DESCENDING {
			low, high = high, low
		}
		return differ(fmt.Sprint(key, q), all, append(low, high...))
	},
	"values below, at and above are all": func(w *world) string {
		name, v := pick(w.rng, single...), w.scalar()
		q := w.wild()
		w.orderBy(q, name, w.rng.IntN(2) == 0)
		q = w.ordered(q)
		all := keysOfRows(w.list(q, nil))
		var parts []string
		for _, op := range []pb.PropertyFilter_Operator{pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_EQUAL,
			pb.PropertyFilter_GREATER_THAN} {
			parts = append(parts, keysOfRows(w.must("part", with(q, and(q.Filter, filterOn(name, op, v))), nil))...)
		}
		return differ(fmt.Sprint(name, value(v), q), slices.Sorted(slices.Values(all)),
			slices.Sorted(slices.Values(parts)))
	},
	"an ancestor's entities are those below its key": func(w *world) string {
		q := w.wild()
		q.Filter = and(w.leaf())
		q = w.ordered(q)
		path := w.g.key()
		all := keysOfRows(w.list(q, nil))
		below := keysOfRows(w.must("below",
			with(q, and(q.Filter, filterOn("__key__", pb.PropertyFilter_HAS_ANCESTOR, &pb.Key{Path: path}))), nil))
		prefix := fullKey(&pb.Key{Path: path})
		return differ(fmt.Sprint(prefix, q), below, slices.DeleteFunc(all, func(k string) bool {
			return k != prefix && !strings.HasPrefix(k, prefix+"/")
		}))
	},
	"a count is the length of the list": func(w *world) string {
		q := w.wild()
		if w.rng.IntN(2) == 0 {
			q.Limit = wrapperspb.Int32(int32(w.rng.IntN(8)))
		}
		q.Offset = int32(w.rng.IntN(9) / 4)
		n := len(w.list(q, nil))
		up := 1 + w.rng.IntN(12)
		limited := countOf()
		limited.Alias = "limited"
		limited.GetCount().UpTo = wrapperspb.Int64(int64(up))
		resp, err := w.raw.RunAggregationQuery(w.Context(), &pb.RunAggregationQueryRequest{ProjectId: w.project,
			QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
				AggregationQuery: &pb.AggregationQuery{QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: q},
					Aggregations: []*pb.AggregationQuery_Aggregation{countOf(), limited}},
			}})
		if err != nil {
			return fmt.Sprintf("%v: %v", q, err)
		}
		want := showAll(props("count", n, "limited", min(n, up)))
		return differ(q.String(), []string{showAll(resp.Batch.AggregationResults[0].AggregateProperties)},
			[]string{want})
	},
	"a sum is that of the projected values": func(w *world) string {
		q := w.wild()
		projected := proto.CloneOf(q)
		projected.Projection = []*pb.Projection{{Property: &pb.PropertyReference{Name: "n"}}}
		rows := w.list(projected, nil)
		n, exact := 0, new(big.Float).SetPrec(500)
		for _, r := range rows {
			text := strings.TrimSuffix(strings.TrimPrefix(r.values, "{n="), "}")
			if v, _, err := big.ParseFloat(text, 10, 500, big.ToNearestEven); err == nil {
				n++
				exact.Add(exact, v)
			}
			if text == "NaN" || strings.HasSuffix(text, "Inf") {
				panic(refusal{})
			}
		}
		sum, _ := exact.Float64()
		resp, err := w.raw.RunAggregationQuery(w.Context(), &pb.RunAggregationQueryRequest{ProjectId: w.project,
			QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
				AggregationQuery: &pb.AggregationQuery{QueryType: &pb.AggregationQuery_NestedQuery{NestedQuery: q},
					Aggregations: []*pb.AggregationQuery_Aggregation{sumOf("n"), averageOf("n"), countOf()}},
			}})
		if err != nil {
			return fmt.Sprintf("%v: %v", q, err)
		}
		results := resp.Batch.AggregationResults[0].AggregateProperties
		number := func(v *pb.Value) float64 { return float64(v.GetIntegerValue()) + v.GetDoubleValue() }
		got := fmt.Sprintf("%.9g %.9g %v", number(results["sn"]), number(results["an"])*float64(n),
			number(results["count"]))
		return differ(q.String(), []string{got}, []string{fmt.Sprintf("%.9g %.9g %v", sum, sum, len(rows))})
	},
	"pages are the whole": func(w *world) string {
		q := w.wild()
		if w.rng.IntN(4) == 0 {
			w.projected(q, w.name())
		}
		whole := w.list(q, nil)
		page := proto.CloneOf(q)
		page.Limit = wrapperspb.Int32(int32(1 + w.rng.IntN(4)))
		var all []row
		for {
			rows := w.must("page", page, nil)
			all = append(all, rows...)
			if len(rows) < int(page.Limit.Value) || len(all) > len(whole) {
				break
			}
			page.StartCursor = []byte(rows[len(rows)-1].cursor)
		}
		return differ(q.String(), rowsAsText(whole), rowsAsText(all))
	},
	"a cursor cuts the whole in two": func(w *world) string {
		q := w.wild()
		if w.rng.IntN(4) == 0 {
			w.projected(q, w.name())
		}
		whole := w.list(q, nil)
		if len(whole) == 0 {
			panic(refusal{})
		}
		at := w.rng.IntN(len(whole))
		from, to := proto.CloneOf(q), proto.CloneOf(q)
		from.StartCursor, to.EndCursor = []byte(whole[at].cursor), []byte(whole[at].cursor)
		return differ(fmt.Sprint("up to ", at, q), rowsAsText(whole[:at+1]), rowsAsText(w.must("to", to, nil))) +
			differ(fmt.Sprint("after ", at, q), rowsAsText(whole[at+1:]), rowsAsText(w.must("from", from, nil)))
	},
	"an offset and a limit are a part of the whole": func(w *world) string {
		q := w.wild()
		whole := rowsAsText(w.list(q, nil))
		q.Offset, q.Limit = int32(w.rng.IntN(8)), wrapperspb.Int32(int32(w.rng.IntN(8)))
		from := min(len(whole), int(q.Offset))
		return differ(q.String(), whole[from:min(len(whole), from+int(q.Limit.Value))],
			rowsAsText(w.must("part", q, nil)))
	},
	"projections are the values of entities": func(w *world) string {
		q, name := w.wild(), pick(w.rng, single[:3]...)
		w.orderBy(q, name, w.rng.IntN(2) == 0)
		q = w.ordered(q)
		projected := proto.CloneOf(q)
		projected.Projection = []*pb.Projection{{Property: &pb.PropertyReference{Name: name}}}
		if slices.ContainsFunc(projected.Order, func(o *pb.PropertyOrder) bool { return o.Property.Name == "m" }) {
			panic(refusal{}) // an array has a row for each of its values in a projection
		}
		rows := w.list(projected, nil)
		entities := w.must("entities", q, nil)
		found := make(map[string]*pb.Value)
		resp, err := w.raw.RunQuery(w.Context(),
			&pb.RunQueryRequest{ProjectId: w.project,
				QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: q.Kind}}})
		for err == nil {
			for _, r := range resp.Batch.EntityResults {
				found[fullKey(r.Entity.Key)] = r.Entity.Properties[name]
			}
			if resp.Batch.MoreResults != pb.QueryResultBatch_NOT_FINISHED {
				break
			}
			resp, err = w.raw.RunQuery(w.Context(),
				&pb.RunQueryRequest{ProjectId: w.project,
					QueryType: &pb.RunQueryRequest_Query{Query: &pb.Query{Kind: q.Kind,
						StartCursor: resp.Batch.EndCursor}}})
		}
		if err != nil {
			return err.Error()
		}
		var want []string
		for _, r := range entities {
			v := found[r.key]
			if t := v.GetTimestampValue(); t != nil {
				v = value(int(t.AsTime().UnixMicro()))
			}
			if b, ok := v.GetValueType().(*pb.Value_BlobValue); ok {
				v = value(string(b.BlobValue))
			}
			want = append(want, r.key+showAll(map[string]*pb.Value{name: v}))
		}
		return differ(projected.String(), rowsAsText(rows), want)
	},
	"keys only are the keys of entities": func(w *world) string {
		q := w.wild()
		only := proto.CloneOf(q)
		only.Projection = []*pb.Projection{{Property: &pb.PropertyReference{Name: "__key__"}}}
		return differ(q.String(), keysOfRows(w.list(q, nil)), keysOfRows(w.must("keys", only, nil)))
	},
	"GQL is the query": func(w *world) string {
		q := w.wild()
		want := rowsAsText(w.list(q, nil))
		g := &pb.GqlQuery{NamedBindings: make(map[string]*pb.GqlQueryParameter)}
		g.QueryString = gqlOf(q, g.NamedBindings)
		resp, err := w.raw.RunQuery(w.Context(),
			&pb.RunQueryRequest{ProjectId: w.project, QueryType: &pb.RunQueryRequest_GqlQuery{GqlQuery: g}})
		if err != nil {
			return fmt.Sprintf("%s: %v", g.QueryString, err)
		}
		if !proto.Equal(resp.Query, q) {
			return fmt.Sprintf("%s\n is    %v\n not %v", g.QueryString, resp.Query, q)
		}
		return differ(g.QueryString, want, rowsAsText(w.must("what GQL is", resp.Query, nil)))
	},
	"a transaction reads the same": func(w *world) string {
		q := w.wild()
		return differ(q.String(), rowsAsText(w.list(q, nil)), rowsAsText(w.must("in a transaction", q, &pb.ReadOptions{
			ConsistencyType: &pb.ReadOptions_Transaction{Transaction: w.begin(nil)},
		})))
	},
	"what was is read the same later": func(w *world) string {
		last := *w
		w.asked = w.wild()
		resp, err := w.raw.Lookup(w.Context(),
			&pb.LookupRequest{ProjectId: w.project, Keys: []*pb.Key{w.keyOf(w.g.key())}})
		if err != nil {
			return err.Error()
		}
		w.at = resp.ReadTime
		w.answer = nil
		answer := w.list(w.asked, nil)
		w.answer = answer
		if last.answer == nil {
			panic(refusal{})
		}
		return differ(last.asked.String(), rowsAsText(last.answer),
			rowsAsText(last.must("later", last.asked, &pb.ReadOptions{
				ConsistencyType: &pb.ReadOptions_ReadTime{ReadTime: last.at},
			})))
	},
	"entities are what a lookup finds": func(w *world) string {
		q := w.wild()
		q.Limit = wrapperspb.Int32(100)
		resp, err := w.runQuery(q)
		if err != nil {
			panic(refusal{err})
		}
		var got, want []string
		for _, r := range resp.Batch.EntityResults {
			found, err := w.raw.Lookup(w.Context(),
				&pb.LookupRequest{ProjectId: w.project, Keys: []*pb.Key{r.Entity.Key}})
			if err != nil || len(found.Found) != 1 {
				return fmt.Sprint(r.Entity.Key, err)
			}
			got = append(got, fmt.Sprint(showAll(r.Entity.Properties), r.Version))
			want = append(want, fmt.Sprint(showAll(found.Found[0].Entity.Properties), found.Found[0].Version))
		}
		return differ(q.String(), got, want)
	},
	"distinct results are the first of each": func(w *world) string {
		q, name := w.wild(), w.name()
		q.Order = slices.DeleteFunc(q.Order, func(o *pb.PropertyOrder) bool { return o.Property.Name == name })
		q.Order = slices.Insert(q.Order, 0, &pb.PropertyOrder{Property: &pb.PropertyReference{Name: name},
			Direction: pb.PropertyOrder_DESCENDING})
		w.projected(q, name)
		all := w.list(q, nil)
		distinct := proto.CloneOf(q)
		distinct.DistinctOn = []*pb.PropertyReference{{Name: name}}
		var want []string
		for i, r := range all {
			if i == 0 || r.values != all[i-1].values {
				want = append(want, r.key+r.values)
			}
		}
		got := rowsAsText(w.must("distinct", distinct, nil))
		if strings.Contains(strings.Join(want, " "), "NaN") || strings.Contains(strings.Join(want, " "), "-0.0") {
			panic(refusal{}) // some different values have the same text
		}
		return differ(q.String(), got, want)
	},
}

func (w *world) projected(q *pb.Query, name string) {
	q.Projection = []*pb.Projection{{Property: &pb.PropertyReference{Name: name}}}
}

// gqlOf returns a query as GQL text. Its values are named bindings, which gqlOf adds to bindings.
func gqlOf(q *pb.Query, bindings map[string]*pb.GqlQueryParameter) string {
	name := func(p *pb.PropertyReference) string { return "`" + strings.ReplaceAll(p.Name, ".", "`.`") + "`" }
	ops := map[pb.PropertyFilter_Operator]string{
		pb.PropertyFilter_EQUAL: "=", pb.PropertyFilter_LESS_THAN: "<", pb.PropertyFilter_LESS_THAN_OR_EQUAL: "<=",
		pb.PropertyFilter_GREATER_THAN: ">", pb.PropertyFilter_GREATER_THAN_OR_EQUAL: ">=",
		pb.PropertyFilter_IN: "IN", pb.PropertyFilter_HAS_ANCESTOR: "HAS ANCESTOR",
	}
	var filter func(f *pb.Filter) string
	filter = func(f *pb.Filter) string {
		if c := f.GetCompositeFilter(); c != nil {
			var parts []string
			for _, sub := range c.Filters {
				parts = append(parts, filter(sub))
			}
			return "(" + strings.Join(parts, " "+c.Op.String()+" ") + ")"
		}
		p := f.GetPropertyFilter()
		b := fmt.Sprintf("v%d", len(bindings))
		bindings[b] = &pb.GqlQueryParameter{ParameterType: &pb.GqlQueryParameter_Value{Value: p.Value}}
		return name(p.Property) + " " + ops[p.Op] + " @" + b
	}
	s := "SELECT * FROM `" + q.Kind[0].Name + "`"
	if q.Filter != nil {
		s += " WHERE " + filter(q.Filter)
	}
	for i, o := range q.Order {
		s += map[bool]string{true: " ORDER BY ", false: ", "}[i == 0] + name(o.Property)
		if o.Direction == pb.PropertyOrder_DESCENDING {
			s += " DESC"
		}
	}
	return s
}
