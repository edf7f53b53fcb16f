package value

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/internal/pbvalue"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// random returns a random value of any type. Many of the values are easily confused with others.
func random(r *rand.Rand, depth int) any {
	texts := []string{"", "a", "1", "1.0", "null", "true", "NaN", "a\"b", "a`b", `a\b`, "a\nb", "KEY(K, 1)", "ä",
		"\u200e", "\u007f", "a, b: c", strings.Repeat("x", 300)}
	text := func() string { return texts[r.IntN(len(texts))] }
	switch n := r.IntN(11); {
	case n == 0:
		return nil
	case n == 1:
		return r.IntN(2) == 0
	case n == 2:
		return int64(r.Uint64()) >> r.IntN(64)
	case n == 3:
		return []float64{0, 1, math.Copysign(0, -1), math.NaN(), math.Inf(1), math.Inf(-1), 1e21, 0.1,
			math.Float64frombits(r.Uint64())}[r.IntN(9)]
	case n == 4:
		return text()
	case n == 5:
		return []byte(text())
	case n == 6:
		return time.UnixMicro(r.Int64N(4e15)).UTC()
	case n == 7:
		return datastore.GeoPoint{Lat: float64(r.IntN(180) - 90), Lng: float64(r.IntN(360)-180) / 3}
	case n == 8:
		return randomKey(r, text)
	case n == 9 && depth > 0:
		list := []any{}
		for range r.IntN(4) {
			list = append(list, random(r, depth-1))
		}
		return list
	case depth > 0:
		e := new(datastore.Entity)
		if r.IntN(2) == 0 {
			e.Key = randomKey(r, text)
		}
		for i, name := range []string{"a", "a.b", "Order", "b c", "1", "`"} {
			if r.IntN(3) == 0 {
				e.Properties = append(e.Properties, datastore.Property{Name: name, Value: random(r, depth-1),
					NoIndex: i%2 == 0})
			}
		}
		return e
	}
	return int64(1)
}

func randomKey(r *rand.Rand, text func() string) *datastore.Key {
	namespace := []string{"", "n", "m"}[r.IntN(3)]
	var k *datastore.Key
	for range 1 + r.IntN(3) {
		k = &datastore.Key{Kind: []string{"K", "Order", "a b", "ä`", "K, 1"}[r.IntN(5)], Parent: k,
			Namespace: namespace}
		if k.Name = text(); k.Name == "" {
			k.ID = 1 + r.Int64N(9)
		}
	}
	return k
}

// TestText parses the texts of random values. The result must be the same value, so that no two
// values have the same text.
func TestText(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		v := random(r, 2)
		text := Text(v)
		p := &reader{text: text}
		got := p.value()
		if p.failed || p.text != "" || Text(got) != text || !same(v, got) {
			t.Fatalf("seed %d: %#v is written as %s, and read as %#v, with %q left", seed, v, text, got, p.text)
		}
		if strings.IndexFunc(text, func(r rune) bool { return !strconv.IsPrint(r) }) >= 0 {
			t.Fatalf("seed %d: %q has what a terminal would act on", seed, text)
		}
		short := Short(text, 100)
		if len(short) > 100 || !utf8.ValidString(short) || short == text != (len(text) <= 100) {
			t.Fatalf("seed %d: %q is %q", seed, text, short)
		}
	}
}

// TestGQL checks that GQL parses a value's text as the same value, if GQL can express this value.
func TestGQL(t *testing.T) {
	for _, v := range []any{
		nil, true, false, int64(-5), 5.0, 0.1, 1e21, "a", "null", "a\"b'c", "5", []byte("ab\xff"), time.Date(2026, 10,
			24, 1, 2, 3, 4000, time.UTC),
		datastore.NameKey("Order", "a", datastore.IDKey("a b", 5, nil)), &datastore.Key{Kind: "K", ID: 1,
			Namespace: "n"},
	} {
		f, err := gql.ParseCondition("p = " + Text(v))
		if err != nil {
			t.Errorf("%s: %v", Text(v), err)
			continue
		}
		if got, err := gql.GoValue(f.GetPropertyFilter().GetValue()); err != nil || !same(v, got) {
			t.Errorf("%s is %#v in GQL, %v, want %#v", Text(v), got, err, v)
		}
	}
	for _, path := range []string{"a", "a.b", "a b", "order", "a.order", "a.b c", "1", "a`b", `a"b`, "ä"} {
		f, err := gql.ParseCondition(gql.Path(path) + " = 1")
		if err != nil || f.GetPropertyFilter().GetProperty().GetName() != path {
			t.Errorf("%s is %v in GQL, %v, want %q", gql.Path(path), f, err, path)
		}
	}
}

// same reports whether two values are the same. It ignores the index flags of nested values.
func same(a, b any) bool {
	switch a := a.(type) {
	case float64:
		b, ok := b.(float64)
		return ok && (math.Float64bits(a) == math.Float64bits(b) || a != a && b != b)
	case []byte:
		b, ok := b.([]byte)
		return ok && string(a) == string(b)
	case time.Time:
		b, ok := b.(time.Time)
		return ok && a.Equal(b)
	case *datastore.Key:
		b, ok := b.(*datastore.Key)
		return ok && a.Equal(b)
	case []any:
		b, ok := b.([]any)
		return ok && slices.EqualFunc(a, b, same)
	case *datastore.Entity:
		b, ok := b.(*datastore.Entity)
		return ok && sameEntities(a, b)
	}
	return a == b
}

// sameEntities compares two entities. Their properties may be in a different order.
func sameEntities(a, b *datastore.Entity) bool {
	if len(a.Properties) != len(b.Properties) || (a.Key == nil) != (b.Key == nil) ||
		a.Key != nil && !a.Key.Equal(b.Key) {
		return false
	}
	for _, p := range a.Properties {
		i := slices.IndexFunc(b.Properties, func(q datastore.Property) bool { return q.Name == p.Name })
		if i < 0 || !same(p.Value, b.Properties[i].Value) {
			return false
		}
	}
	return true
}

// A reader parses the texts that [Text] returns.
type reader struct {
	text   string
	failed bool
}

func (p *reader) accept(s string) bool {
	rest, ok := strings.CutPrefix(p.text, s)
	if ok {
		p.text = rest
	}
	return ok
}

func (p *reader) expect(s string) {
	p.failed = !p.accept(s) || p.failed
}

func (p *reader) quoted() string {
	raw, err := strconv.QuotedPrefix(p.text)
	s, bad := strconv.Unquote(raw)
	p.text, p.failed = p.text[len(raw):], p.failed || err != nil || bad != nil
	return s
}

// name reads a name, with or without backquotes.
func (p *reader) name() string {
	if !p.accept("`") {
		n := strings.IndexAny(p.text, ",:")
		name := p.text[:max(0, n)]
		p.text = p.text[max(0, n):]
		return name
	}
	for i := 0; i < len(p.text); i++ {
		switch p.text[i] {
		case '\\':
			i++
		case '`':
			inner := strings.ReplaceAll(strings.ReplaceAll(p.text[:i], "\\`", "`"), `"`, `\"`)
			p.text = p.text[i+1:]
			name, err := strconv.Unquote(`"` + inner + `"`)
			p.failed = p.failed || err != nil
			return name
		}
	}
	p.failed = true
	return ""
}

func (p *reader) value() any {
	switch {
	case p.failed:
		return nil
	case p.accept("null"):
		return nil
	case p.accept("true"):
		return true
	case p.accept("false"):
		return false
	case strings.HasPrefix(p.text, `"`):
		return p.quoted()
	case p.accept("NaN"):
		return math.NaN()
	case p.accept("Infinity"):
		return math.Inf(1)
	case p.accept("-Infinity"):
		return math.Inf(-1)
	case strings.HasPrefix(p.text, "BLOB("), strings.HasPrefix(p.text, "DATETIME("):
		end := strings.Index(p.text, ")") + 1
		f, err := gql.ParseCondition("p = " + p.text[:end])
		p.text, p.failed = p.text[end:], err != nil
		v, _ := gql.GoValue(f.GetPropertyFilter().GetValue())
		return v
	case strings.HasPrefix(p.text, "KEY("):
		return p.key()
	case p.accept("POINT("):
		lat, _ := p.value().(float64)
		p.expect(", ")
		lng, _ := p.value().(float64)
		p.expect(")")
		return datastore.GeoPoint{Lat: lat, Lng: lng}
	case p.accept("ARRAY("):
		list := []any{}
		for !p.failed && !p.accept(")") {
			if len(list) > 0 {
				p.expect(", ")
			}
			list = append(list, p.value())
		}
		return list
	case p.accept("ENTITY("):
		return p.entity()
	}
	return p.number()
}

// entity reads what follows ENTITY( in a text.
func (p *reader) entity() *datastore.Entity {
	e := new(datastore.Entity)
	if strings.HasPrefix(p.text, "KEY(") {
		e.Key = p.key()
		p.accept(", ")
	}
	for !p.failed && !p.accept(")") {
		if len(e.Properties) > 0 {
			p.expect(", ")
		}
		name := p.name()
		p.expect(": ")
		e.Properties = append(e.Properties, datastore.Property{Name: name, Value: p.value()})
	}
	return e
}

func (p *reader) number() any {
	n := len(p.text) - len(strings.TrimLeft(p.text, "0123456789+-.e"))
	number := p.text[:n]
	p.text = p.text[n:]
	if strings.ContainsAny(number, ".e") {
		f, err := strconv.ParseFloat(number, 64)
		p.failed = err != nil
		return f
	}
	i, err := strconv.ParseInt(number, 10, 64)
	p.failed = err != nil
	return i
}

func (p *reader) key() (k *datastore.Key) {
	p.expect("KEY(")
	namespace := ""
	if p.accept("NAMESPACE(") {
		namespace = p.quoted()
		p.expect("), ")
	}
	for first := true; !p.failed && !p.accept(")"); first = false {
		if !first {
			p.expect(", ")
		}
		k = &datastore.Key{Kind: p.name(), Parent: k, Namespace: namespace}
		p.expect(", ")
		if strings.HasPrefix(p.text, `"`) {
			k.Name = p.quoted()
		} else {
			k.ID, _ = p.value().(int64)
		}
	}
	return k
}

// TestPaths checks which values a path leads to, for names with and without dots.
func TestPaths(t *testing.T) {
	entity := func(properties ...datastore.Property) *datastore.Entity {
		return &datastore.Entity{Properties: properties}
	}
	inner := func(name string, v any) *datastore.Entity { return entity(datastore.Property{Name: name, Value: v}) }
	e, err := pbvalue.Entity(nil, []datastore.Property{
		{Name: "a.b.c", Value: 1}, {Name: "a.b", Value: []any{inner("c", []any{3, 4}), nil}},
		{Name: "a", Value: []any{entity(datastore.Property{Name: "b.c", Value: 2},
			datastore.Property{Name: "b", Value: inner("c", 5)}), 6, nil}},
		{Name: "b", Value: 7, NoIndex: true}, {Name: "e", Value: []any{}}, {Name: "f", Value: (*datastore.Entity)(nil)},
		{Name: "mixed", Value: []any{8, 9, inner("x", 10)}}, {Name: "hidden", Value: inner("x", 11), NoIndex: true},
	}, false)
	if err != nil {
		t.Fatal(err)
	}
	mixed := e.Properties["mixed"].GetArrayValue().Values
	mixed[0].ExcludeFromIndexes, mixed[2].ExcludeFromIndexes = true, true
	for path, want := range map[string]string{"a.b.c": "[1 2 3 4 5]", "b": "[7]", "b.c": "[]", "e": "[]",
		"f":       "[<nil>]",
		"a.b.c.d": "[]", "": "[]", "c": "[]", "mixed.x": "[10]", "hidden.x": "[11]"} {
		values := Of(e, path)
		slices.SortFunc(values, Compare)
		if fmt.Sprint(values) != want {
			t.Errorf("%q leads to %v, want %s", path, values, want)
		}
	}
	for path, want := range map[string]bool{"a": false, "a.b": true, "a.b.c": true, "b.c": false, "a.x": true,
		"f.x": false} {
		if Leads(e, path) != want {
			t.Errorf("%q leads into an entity: %v, want %v", path, !want, want)
		}
	}
	for path, want := range map[string]int{"a.b.c": 5, "b": 0, "mixed": 1, "mixed.x": 0, "hidden.x": 0, "a": 2,
		"e": 0} {
		if got := Indexed(e, path); len(got) != want {
			t.Errorf("%q has %d values in indexes, want %d: %v", path, len(got), want, got)
		}
	}
}

// TestForeign checks that keys of other projects and databases differ from the entity's own. The
// client's keys do not show this difference.
func TestForeign(t *testing.T) {
	key := func(project, database string) *pb.Value {
		k := pbvalue.Key(datastore.IDKey("K", 1, nil))
		k.PartitionId = &pb.PartitionId{ProjectId: project, DatabaseId: database}
		return &pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: k}}
	}
	e := &pb.Entity{Key: key("ours", "").GetKeyValue(),
		Properties: map[string]*pb.Value{"p": {ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{
			Values: []*pb.Value{key("ours", ""), key("", ""), key("theirs", ""), key("ours", "second"),
				key("theirs", "second")},
		}}}}}
	var texts []string
	for i, v := range Of(e, "p") {
		texts = append(texts, Text(v))
		if same := Compare(v, datastore.IDKey("K", 1, nil)) == 0; same != (i < 2) || Rank(v) != KeyRank ||
			Type(v) != "key" {
			t.Errorf("%s is ours: %v", Text(v), same)
		}
		for j, w := range Of(e, "p") {
			if c, back := Compare(v, w), Compare(w, v); c != -back || (c == 0) != (i == j || i < 2 && j < 2) {
				t.Errorf("%s compared with %s: %d and %d", Text(v), Text(w), c, back)
			}
		}
	}
	want := []string{`KEY(K, 1)`, `KEY(K, 1)`, `KEY(PROJECT("theirs"), K, 1)`,
		`KEY(PROJECT("ours"), DATABASE("second"), K, 1)`,
		`KEY(PROJECT("theirs"), DATABASE("second"), K, 1)`}
	if !slices.Equal(texts, want) {
		t.Errorf("texts %q, want %q", texts, want)
	}

	list := func(v *pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: &pb.ArrayValue{Values: []*pb.Value{v}}}}
	}
	inside := func(k *pb.Key, properties map[string]*pb.Value) *pb.Value {
		return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: k, Properties: properties}}}
	}
	in := func(v *pb.Value) *pb.Value { return inside(nil, map[string]*pb.Value{"k": v, "a": list(v)}) }
	nowhere := &pb.Key{PartitionId: &pb.PartitionId{ProjectId: "theirs"}}
	for _, c := range []struct {
		v    *pb.Value
		want string
	}{
		{in(key("ours", "")), `ENTITY(a: ARRAY(KEY(K, 1)), k: KEY(K, 1))`},
		{in(key("theirs", "")), `ENTITY(a: ARRAY(KEY(PROJECT("theirs"), K, 1)), k: KEY(PROJECT("theirs"), K, 1))`},
		{in(in(key("ours", "second"))),
			`ENTITY(a: ARRAY(ENTITY(a: ARRAY(KEY(PROJECT("ours"), DATABASE("second"), K, 1)), ` +
				`k: KEY(PROJECT("ours"), DATABASE("second"), K, 1))), k: ENTITY(a: ARRAY(KEY(PROJECT("ours"), ` +
				`DATABASE("second"), K, 1)), k: KEY(PROJECT("ours"), DATABASE("second"), K, 1)))`},
		{inside(key("ours", "").GetKeyValue(), nil), `ENTITY(KEY(K, 1))`},
		{inside(key("theirs", "").GetKeyValue(), map[string]*pb.Value{"k": key("", "")}),
			`ENTITY(KEY(PROJECT("theirs"), K, 1), k: KEY(K, 1))`},
		{inside(nowhere, nil), `ENTITY()`},
	} {
		if v := Go(e, c.v); Text(v) != c.want || Type(v) != "entity" {
			t.Errorf("%s of the type %s, want %s", Text(v), Type(v), c.want)
		}
	}
}
