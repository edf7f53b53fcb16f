package conformance

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/protobuf/encoding/prototext"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/scattermap/scattermap/internal/testflag"
)

// TestDifferential runs random sequences of writes, transactions and queries against the embedded
// Datastore and one of Google's emulators. It compares all results: entities, their order,
// continuations from cursors, and error codes.
//
// Google's emulators have known differences. The map dialects lists them with the reasons, and the
// sequences do without them.
func TestDifferential(t *testing.T) {
	seed := testflag.Seed(t)
	for product, d := range dialects {
		t.Run(product, func(t *testing.T) {
			t.Parallel()
			theirs, ours := newEnv(t, product), newEnv(t, "embedded")
			t.Logf("and %d more seeds; with -sequences 1 it is one", *testflag.Sequences-1)
			for _, rule := range d {
				t.Logf("left out for %s: %s", product, rule.why)
			}
			for i := range uint64(*testflag.Sequences) {
				a, b := theirs.empty(t), ours.empty(t)
				steps := sequence(rand.New(rand.NewPCG(seed+i, 0)), d)
				for n, step := range steps {
					if got, want := step.run(b), step.run(a); got != want {
						t.Errorf("seed %d, step %d: %s\n embedded %s\n %s %s", seed+i, n, step.text, got, product, want)
						break
					}
				}
			}
		})
	}
}

// A dialect lists the features that one of Google's emulators does not support as documented.
// Sequences for this emulator do not use them.
type dialect []rule

type rule struct {
	what feature
	why  string
}

type feature int

const (
	disjunctions feature = iota // IN and OR
	notEqual                    // NOT_EQUAL and NOT_IN
	// inequalities on several properties, or on a property that is not ordered by first
	manyProperties
	sortedArrays      // orders by a property whose values may be arrays
	tiesDescending    // descending orders without an order by key
	masks             // property masks
	transforms        // property transforms
	aggregations      // COUNT, SUM, AVG
	conflicts         // transactions whose entities another client changes
	emptyArrays       // indexed empty arrays
	distinctOn        // distinct-on with only some of the projected properties
	keyAndMore        // orders after an order by __key__
	moreResults       // whether a batch says that more results follow
	equalityOrdered   // orders by a property that is compared for equality and has arrays
	exclusions        // mutations of one entity that can't both succeed, such as two inserts
	arrayCursors      // cursors of queries that are ordered by arrays
	projectionCursors // cursors of projections
	projectionsByKey  // projections with inequalities on keys
	summedEqualities  // sums of an array by whose values the query also filters
)

func (d dialect) lacks(f feature) bool {
	return slices.ContainsFunc(d, func(r rule) bool { return r.what == f })
}

// dialects has the known differences of Google's emulators, with the reasons.
var dialects = map[string]dialect{
	"classic": {
		{disjunctions, "IN and OR are newer than the classic emulator"},
		{notEqual, "NOT_EQUAL and NOT_IN are newer than the classic emulator"},
		{manyProperties, "the classic emulator has inequalities on one property, which has to be ordered by first"},
		{masks, "the classic emulator drops what a mask does not name"},
		{transforms, "the classic emulator ignores transforms"},
		{aggregations, "the classic emulator has no aggregations"},
		{emptyArrays, "the classic emulator has empty arrays in its indexes as null; production has no entry for them"},
		{distinctOn, "the classic emulator sorts by the wrong property where only some are distinct"},
		{keyAndMore, "the classic emulator ignores orders behind __key__"},
		{exclusions, "the classic emulator refuses impossible sequences of mutations by other codes"},
		{projectionsByKey, "the classic emulator orders projections by value, also where __key__ has the inequality"},
		{arrayCursors, "the classic emulator's cursors lose results of queries that are ordered by arrays"},
	},
	"firestore": {
		{sortedArrays, "the Firestore emulator returns an entity once for each value of an array that it sorts by"},
		{tiesDescending, "the Firestore emulator sorts equal values of a descending order by descending keys"},
		{projectionCursors,
			"the Firestore emulator refuses its own cursors of projections, or repeats groups behind them"},
		{summedEqualities, "the Firestore emulator adds up the value of an equality once for each value of the array"},
		{conflicts, "the Firestore emulator locks what transactions read, and others wait for long"},
	},
}

// A step is a call and its result as text. The result must be the same in both Datastores.
type step struct {
	text string
	run  func(*env) string
}

// sequence returns random steps. The first ones are mostly writes. Then queries follow, with writes
// in between.
func sequence(rng *rand.Rand, d dialect) []step {
	var steps []step
	g := &generator{rng: rng, dialect: d}
	for range 3 + rng.IntN(4) {
		steps = append(steps, g.write())
	}
	for range 12 {
		switch rng.IntN(6) {
		case 0:
			steps = append(steps, g.write())
		case 1:
			steps = append(steps, g.transaction())
		case 2:
			steps = append(steps, g.lookup())
		case 3:
			steps = append(steps, g.aggregation())
		default:
			steps = append(steps, g.query())
		}
	}
	return steps
}

// A generator makes random steps with only a few keys and properties, so that the steps affect each
// other.
type generator struct {
	rng     *rand.Rand
	dialect dialect
}

func pick[T any](rng *rand.Rand, all ...T) T { return all[rng.IntN(len(all))] }

// key returns one of a few keys, which have IDs, names and ancestors.
func (g *generator) key() []*pb.Key_PathElement {
	path := []*pb.Key_PathElement{named("D", pick(g.rng, "a", "b", "c", "d", "e", "\x01", "é"))}
	if g.rng.IntN(3) == 0 {
		path[0].IdType = &pb.Key_PathElement_Id{Id: pick[int64](g.rng, 1, 2, -3, 1<<40)}
	}
	if g.rng.IntN(3) == 0 {
		path = append([]*pb.Key_PathElement{named(pick(g.rng, "D", "Root"), pick(g.rng, "r", "s"))}, path...)
	}
	return path
}

func (e *env) keyOf(path []*pb.Key_PathElement) *pb.Key {
	return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: e.project}, Path: path}
}

// The names of the properties that may have arrays, and of the properties that have none.
var (
	plain  = []string{"p", "q"}
	arrays = []string{"m"}
)

func (g *generator) scalar() any {
	if g.rng.IntN(8) == 0 {
		return pick(g.rng, time.Unix(1, 0).UTC(), time.Unix(1e9, 0).UTC())
	}
	if g.rng.IntN(8) == 0 {
		return g.extreme()
	}
	return pick[any](g.rng, nil, true, false, 0, 1, 2, 2, 3, -1, 0.5, 2.5, math.Inf(1), "", "x", "y", "xy")
}

// somewhere returns a geographical point. It is decoded from its wire form, so that this module
// needs no dependency for the type.
func somewhere() *pb.Value {
	v := new(pb.Value)
	if err := prototext.Unmarshal([]byte("geo_point_value:{latitude:1 longitude:-2}"), v); err != nil {
		panic(err)
	}
	return v
}

// extreme returns a value at a limit of its type, or a value that almost equals another one.
func (g *generator) extreme() any {
	return pick[any](g.rng, math.NaN(), math.Inf(-1), math.Copysign(0, -1), 0.0, 1.0, 2.0, 1<<53, 1<<53+1, 0x1p53,
		math.MaxInt64, math.MinInt64, 0x1p63, -0x1p63,
		[]byte("x"), []byte{}, []byte("xy"), "x\x00", "é", "\U0001F600", time.UnixMicro(1).UTC(),
		time.UnixMicro(-1).UTC(), time.Unix(0, 0).UTC(),
		&pb.Key{Path: []*pb.Key_PathElement{named("D", "a")}},
		&pb.Key{Path: []*pb.Key_PathElement{named("D", "a"), named("D", "b")}},
		somewhere())
}

// element returns a random element of an array, which may be an entity.
func (g *generator) element() any {
	if g.rng.IntN(5) == 0 {
		return inside("p", g.scalar())
	}
	return g.scalar()
}

func (g *generator) entity() map[string]*pb.Value {
	m := make(map[string]*pb.Value)
	for _, name := range plain {
		if g.rng.IntN(4) > 0 {
			m[name] = value(g.scalar())
			m[name].ExcludeFromIndexes = g.rng.IntN(8) == 0
		}
	}
	if g.rng.IntN(2) == 0 {
		list := []any{}
		for range g.rng.IntN(4) {
			list = append(list, g.scalar())
		}
		if len(list) > 0 || !g.dialect.lacks(emptyArrays) {
			m["m"] = value(list)
		}
	}
	if g.rng.IntN(4) == 0 {
		m["e"] = value([]any{g.element(), g.element()}) // only transforms use this property
	}
	if g.rng.IntN(2) == 0 {
		m["n"] = value(pick[any](g.rng, 1, 2, -5, 0.25, "x", nil)) // only aggregations use this property
	}
	if g.rng.IntN(4) == 0 {
		m["in"] = value(map[string]*pb.Value{"p": value(g.scalar()), "q": unindexed(g.scalar())})
	}
	return m
}

// change returns a random property transform.
func (g *generator) change() *pb.PropertyTransform {
	number := func() any {
		return pick[any](g.rng, 0, 1, -1, 2, 3, 0.5, 2.5, 1.0, math.NaN(), math.Inf(1), math.Inf(-1),
			math.Copysign(0, -1), 1<<53+1, 0x1p53, math.MaxInt64, math.MinInt64, 0x1p63, -0x1p63, "x")
	}
	name := pick(g.rng, "p", "q", "n", "in.p", "in.r", "`p`", "in.`x.y`", "new")
	switch g.rng.IntN(5) {
	case 0:
		return of(name, increment(number()))
	case 1:
		return of(name, maximum(number()))
	case 2:
		return of(name, minimum(number()))
	case 3:
		if g.rng.IntN(2) == 0 {
			return of("m", appendMissing(g.scalar(), g.scalar()))
		}
		return of("e", appendMissing(g.element(), g.element()))
	}
	return of(pick(g.rng, "m", "e"), removeAll(g.element(), g.element()))
}

func (g *generator) mutation() (string, []*pb.Key_PathElement, func(*env) *pb.Mutation) {
	path, properties := g.key(), g.entity()
	op := pick(g.rng, "upsert", "upsert", "upsert", "insert", "update", "delete")
	var mask *pb.PropertyMask
	if (op == "update" || op == "upsert") && g.rng.IntN(4) == 0 && !g.dialect.lacks(masks) {
		mask = &pb.PropertyMask{Paths: []string{pick(g.rng, "p", "m", "in", "in.p", "none")}}
	}
	var changes []*pb.PropertyTransform
	if op != "delete" && g.rng.IntN(4) == 0 && !g.dialect.lacks(transforms) {
		for range 1 + g.rng.IntN(3) {
			changes = append(changes, g.change())
		}
	}
	return fmt.Sprintf("%s %v %s mask %v transforms %v", op, path, showAll(properties), mask.GetPaths(), changes), path,
		func(e *env) *pb.Mutation {
			entity := &pb.Entity{Key: e.keyOf(path), Properties: properties}
			m := &pb.Mutation{PropertyMask: mask, PropertyTransforms: changes}
			switch op {
			case "upsert":
				m.Operation = &pb.Mutation_Upsert{Upsert: entity}
			case "insert":
				m.Operation = &pb.Mutation_Insert{Insert: entity}
			case "update":
				m.Operation = &pb.Mutation_Update{Update: entity}
			default:
				m.Operation = &pb.Mutation_Delete{Delete: entity.Key}
			}
			return m
		}
}

// write returns a step that commits one mutation, or several in a transaction. Several mutations
// without a transaction need not take effect together, so the step has none of these.
func (g *generator) write() step {
	var texts []string
	var makers []func(*env) *pb.Mutation
	seen := make(map[string]bool)
	for range max(1, g.rng.IntN(6)-1) {
		text, path, m := g.mutation()
		if id := fmt.Sprint(path); g.dialect.lacks(exclusions) && seen[id] {
			continue
		} else {
			seen[id] = true
		}
		texts, makers = append(texts, text), append(makers, m)
	}
	return step{"commit " + strings.Join(texts, ", "), func(e *env) string {
		req := &pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_NON_TRANSACTIONAL}
		for _, m := range makers {
			req.Mutations = append(req.Mutations, m(e))
		}
		if len(makers) > 1 {
			req.Mode, req.TransactionSelector = pb.CommitRequest_TRANSACTIONAL,
				&pb.CommitRequest_Transaction{Transaction: e.begin(nil)}
		}
		resp, err := e.raw.Commit(e.Context(), req)
		if err != nil && len(makers) > 1 {
			_ = e.rollback(req.GetTransaction()) // fails if the transaction has ended
		}
		return committed(resp, err)
	}}
}

func committed(resp *pb.CommitResponse, err error) string {
	if err != nil {
		return outcome(err)
	}
	s := "OK"
	for _, r := range resp.MutationResults {
		for _, v := range r.TransformResults {
			s += " " + show(v)
		}
	}
	return s
}

// transaction returns a step in which a transaction reads, writes, and then commits or rolls back.
// Sometimes another client changes an entity that the transaction has read.
func (g *generator) transaction() step {
	read, back := g.key(), g.rng.IntN(4) == 0
	path, properties := g.key(), g.entity()
	// an upsert, because it can't fail for another reason than a conflict
	text := fmt.Sprintf("upsert %v %s", path, showAll(properties))
	meanwhile := ""
	var other func(*env) *pb.Mutation
	if g.rng.IntN(2) == 0 && !g.dialect.lacks(conflicts) {
		properties := g.entity()
		meanwhile = fmt.Sprintf("; meanwhile upsert %v %s", read, showAll(properties))
		other = func(e *env) *pb.Mutation { return upsert(e.keyOf(read), properties) }
	}
	return step{fmt.Sprintf("transaction: lookup %v%s; %s; rollback %v", read, meanwhile, text, back),
		func(e *env) string {
			tx := e.begin(nil)
			resp, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, ReadOptions: inTx(tx),
				Keys: []*pb.Key{e.keyOf(read)}})
			if err != nil {
				return outcome(err)
			}
			s := fmt.Sprint(len(resp.Found), " found")
			if other != nil {
				if _, err := e.commit(other(e)); err != nil {
					return s + " " + outcome(err)
				}
			}
			if back {
				return s + " " + outcome(e.rollback(tx))
			}
			committed, err := e.raw.Commit(e.Context(),
				&pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
					TransactionSelector: &pb.CommitRequest_Transaction{Transaction: tx},
					Mutations:           []*pb.Mutation{upsert(e.keyOf(path), properties)}})
			if err != nil {
				_ = e.rollback(tx) // fails if the transaction has ended
				return s + " " + outcome(err)
			}
			return fmt.Sprint(s, " ", len(committed.MutationResults))
		}}
}

func (g *generator) lookup() step {
	paths := [][]*pb.Key_PathElement{g.key(), g.key(), g.key()}
	return step{fmt.Sprint("lookup ", paths), func(e *env) string {
		req := &pb.LookupRequest{ProjectId: e.project}
		for _, p := range paths {
			req.Keys = append(req.Keys, e.keyOf(p))
		}
		resp, err := e.raw.Lookup(e.Context(), req)
		if err != nil {
			return outcome(err)
		}
		var all []string
		for _, r := range resp.Found {
			all = append(all, fullKey(r.Entity.Key)+showAll(r.Entity.Properties))
		}
		slices.Sort(all)
		return strings.Join(slices.Compact(all), " ")
	}}
}

func fullKey(k *pb.Key) string {
	s := ""
	for _, el := range k.Path {
		s += fmt.Sprintf("/%s,%d%q", el.Kind, el.GetId(), el.GetName())
	}
	return s
}

// aggregation returns a step that counts, sums and averages, with or without a limit and an offset.
func (g *generator) aggregation() step {
	q, _ := g.filtered()
	up := g.rng.IntN(3)
	if g.dialect.lacks(aggregations) {
		return g.query()
	}
	if g.rng.IntN(4) > 0 {
		q.Projection, q.DistinctOn = nil, nil
	}
	if g.rng.IntN(3) == 0 {
		q.Limit = wrapperspb.Int32(int32(g.rng.IntN(5)))
	}
	q.Offset = int32(g.rng.IntN(6) / 4)
	names := []string{pick(g.rng, "n", "n", "p", "m", "in.p", "__key__")}
	if other := pick(g.rng, "n", "q"); g.rng.IntN(3) == 0 && other != names[0] {
		names = append(names, other)
	}
	if g.dialect.lacks(summedEqualities) && strings.Contains(q.Filter.String(), `name:"m"`) && names[0] == "m" {
		names = []string{"n"}
	}
	count := countOf()
	if up > 0 {
		count.GetCount().UpTo = wrapperspb.Int64(int64(up))
	}
	return step{fmt.Sprintf("count up to %d, sum, average of %v over %v", up, names, q), func(e *env) string {
		run := func(aggregations ...*pb.AggregationQuery_Aggregation) string {
			resp, err := e.raw.RunAggregationQuery(e.Context(), &pb.RunAggregationQueryRequest{ProjectId: e.project,
				QueryType: &pb.RunAggregationQueryRequest_AggregationQuery{
					AggregationQuery: &pb.AggregationQuery{
						QueryType:    &pb.AggregationQuery_NestedQuery{NestedQuery: q.in(e)},
						Aggregations: aggregations}}})
			if err != nil {
				return outcome(err)
			}
			results := resp.Batch.AggregationResults[0].AggregateProperties
			for _, v := range results {
				// Rounding errors depend on the order of the values.
				if d, ok := v.ValueType.(*pb.Value_DoubleValue); ok {
					d.DoubleValue, _ = strconv.ParseFloat(fmt.Sprintf("%.12g", d.DoubleValue), 64)
				}
			}
			return showAll(results)
		}
		s := run(count)
		sums := []*pb.AggregationQuery_Aggregation{countOf()}
		for _, name := range names {
			sums = append(sums, sumOf(name), averageOf(name))
		}
		return s + " " + run(sums...)
	}}
}
