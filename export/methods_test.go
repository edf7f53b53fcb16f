package export_test

import (
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/scattermap/scattermap/export"
)

// Types whose methods come from embedded fields.
type (
	timeAnd struct { // gets its JSON and text from the time, so that its field X is lost
		time.Time
		X int
	}
	below      struct{ timeAnd }
	belowTwice struct{ below }
	pointerTo  struct{ *timeAnd }
	sibling    struct {
		timeIn
		embedded // has an exported field
	}
	silent struct {
		X time.Time `json:"-" csv:"-" avro:"-"`
		time.Time
		*hidden     //nolint:unused // nobody sees it
		n       int //nolint:unused // nobody sees it
	}
	unsaid struct {
		time.Time `json:"-" csv:"-" avro:"-"`
	}
	instant     = time.Time
	aliased     struct{ instant } // embeds an alias whose name is not exported
	deepTime    struct{ timeIn }
	timeBelow   struct{ *time.Time }
	generic     struct{ pair[int] }
	pair[T any] struct {
		time.Time
		V T
	}
	own[T any] struct { // declares MarshalText and MarshalJSON itself, although it embeds a time
		time.Time
		V T
	}
	byText struct{ encoding.TextMarshaler }
	byJSON struct{ json.Marshaler }
	byBoth struct {
		json.Marshaler
		N int
	}
	stale   struct{ A int }
	product struct {
		stale
		B int
	}
	small string //nolint:unused // it is embedded
)

func (o own[T]) MarshalText() ([]byte, error) { return fmt.Appendf(nil, "%v", o.V), nil }
func (o own[T]) MarshalJSON() ([]byte, error) { return fmt.Appendf(nil, `"%v"`, o.V), nil }
func (o *own[T]) UnmarshalText([]byte) error  { return nil }
func (s stale) IsZero() bool                  { return s.A == 0 }

// An onlyJSON has a MarshalText that fails, and a MarshalJSON that succeeds. For JSON, the latter
// must be called.
type onlyJSON struct{}

func (onlyJSON) MarshalText() ([]byte, error) { return nil, errors.New("no text") }
func (onlyJSON) MarshalJSON() ([]byte, error) { return []byte(`"json"`), nil }

// TestPromotedMethods checks types that get their JSON or text from an embedded field, at any
// depth. They must be refused if they have other fields, which would be lost.
func TestPromotedMethods(t *testing.T) {
	const jsonl, jsons, csv, avro = export.JSONLines, export.JSON, export.CSV, export.Avro
	texts, js := []export.Format{jsonl, jsons, csv, avro}, []export.Format{jsonl, jsons}
	type r1 struct {
		A timeAnd `parquet:"-"`
		N int
	}
	refusedBy[r1](t, texts, "field A of", "its embedded field Time, so its field X would be left out")
	type r2 struct {
		A below `parquet:"-"`
		N int
	}
	refusedBy[r2](t, texts, "field A of", "its embedded field timeAnd.Time, so its field timeAnd.X would be left out")
	type r3 struct {
		A *belowTwice `parquet:"-"`
		N int
	}
	refusedBy[r3](t, texts, "field A of", "below.timeAnd.X would be left out")
	type r4 struct {
		A pointerTo `parquet:"-"`
		N int
	}
	refusedBy[r4](t, texts, "field A of", "timeAnd.X would be left out")
	type r5 struct {
		A sibling `parquet:"-"`
		N int
	}
	refusedBy[r5](t, texts, "field A of", "its field embedded would be left out")
	type r6 struct {
		A generic `parquet:"-"`
		N int
	}
	refusedBy[r6](t, texts, "field A of", "pair.V would be left out")
	type r7 struct {
		A unsaid `parquet:"-"`
		N int
	}
	refusedBy[r7](t, texts, "field A of", "which its tag says to leave out")
	type r8 struct {
		M map[timeAnd]int `csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedBy[r8](t, js, "field M of", "its field X would be left out")
	type r9 struct {
		L []below `csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedBy[r9](t, js, "field L of", "timeAnd.X would be left out")
	type r10 struct {
		A byBoth `csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedBy[r10](t, js, "field A of", "its field N would be left out")
	type r11 struct { // omitzero calls its IsZero, which an embedded field has
		A product `json:",omitzero" csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedBy[r11](t, js, "gets its IsZero from", "its field B would be left out")

	type fits struct {
		A deepTime `parquet:"-"`
		B silent   `parquet:"-"`
		C own[int] `parquet:"-"`
		D aliased  `parquet:"-"`
		E *timeIn  `parquet:"-"`
		N int
	}
	refusedBy[fits](t, nil)
	at := time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	said := "2026-01-02T03:04:05.000000006Z"
	r := fits{deepTime{timeIn{at}}, silent{Time: at}, own[int]{at, 7}, aliased{at}, nil, 1}
	file, err := one(t, export.Options{}, r)
	want := `{"A":"` + said + `","B":"` + said + `","C":"7","D":"` + said + `","E":null,"N":1}` + "\n"
	if err != nil || string(file) != want {
		t.Errorf("%q, want %q; %v", file, want, err)
	}
	file, err = one(t, export.Options{Format: csv}, r)
	want = "A,B,C,D,E,N\r\n" + said + "," + said + ",7," + said + ",,1\r\n"
	if err != nil || string(file) != want {
		t.Errorf("%q, want %q; %v", file, want, err)
	}
	written(t, r, avro)
}

// TestPromotedValues checks values that get their JSON or text from another value, which they embed
// or hold in an interface. If that value can't be written, the outer one must fail with the same
// error.
func TestPromotedValues(t *testing.T) {
	const jsonl, csv, avro = export.JSONLines, export.CSV, export.Avro
	// RFC 3339 can't express the seconds of this zone's offset
	off := time.Date(1890, 1, 1, 0, 0, 0, 0, time.FixedZone("LMT", 3208))
	type times struct {
		A timeIn
		B deepTime
		C aliased
		D *timeIn
	}
	failing(t, times{A: timeIn{off}}, "A", jsonl, csv, avro)
	failing(t, times{B: deepTime{timeIn{off}}}, "B", jsonl, csv, avro)
	failing(t, times{C: aliased{off}}, "C", jsonl, csv, avro)
	failing(t, times{D: &timeIn{off}}, "D", jsonl, csv, avro)
	written(t, times{D: &timeIn{}}, jsonl, csv, avro)
	type keys struct{ M map[time.Time]int }
	failing(t, keys{map[time.Time]int{off: 1}}, "M[…]", jsonl)
	written(t, keys{map[time.Time]int{off.UTC(): 1}}, jsonl)
	type held struct{ A encoding.TextMarshaler }
	for _, v := range []encoding.TextMarshaler{off, &off, timeIn{off}, deepTime{timeIn{off}}, byText{off},
		byText{byText{timeIn{off}}}, timeAnd{X: 1}, below{timeAnd{X: 1}}, byText{timeAnd{X: 1}}, byText{},
		timeBelow{}} {
		failing(t, held{v}, "A", jsonl, csv)
	}
	for _, v := range []encoding.TextMarshaler{nil, off.UTC(), timeIn{}, byText{timeIn{}}} {
		written(t, held{v}, jsonl, csv)
	}
	type heldBoth struct {
		A interface {
			encoding.TextMarshaler
			json.Marshaler
		}
	}
	written(t, heldBoth{onlyJSON{}}, jsonl)
	type anything struct{ A any }
	for _, v := range []any{timeIn{off}, []any{deepTime{timeIn{off}}}, byJSON{off}, byJSON{byJSON{timeAnd{X: 1}}},
		map[timeIn]int{{off}: 1}, map[encoding.TextMarshaler]int{timeAnd{X: 1}: 1}, map[*timeIn]int{nil: 1},
		byJSON{}, timeBelow{}, struct{ json.RawMessage }{json.RawMessage("secret")}} {
		if said := failureOf(t, jsonl, anything{v}); !strings.Contains(said, "field A") ||
			strings.Contains(said, "panic") ||
			strings.Contains(said, "secret") {
			t.Errorf("%T fails with %q, want an error that names the field A", v, said)
		}
	}
	written(t, anything{[]any{timeIn{}, byJSON{timeIn{}}, map[timeIn]int{{}: 1}}}, jsonl)
}

// TestUnexported checks unexported fields that are embedded or have a tag. A format must refuse
// those that it would leave out. It must check the values of those that it writes.
func TestUnexported(t *testing.T) {
	const jsonl, jsons, csv, avro, parquet = export.JSONLines, export.JSON, export.CSV, export.Avro, export.Parquet
	type formats = []export.Format
	all := formats{jsonl, jsons, csv, avro, parquet}
	type named struct {
		embedded `json:"in" csv:"in" avro:"in" parquet:"in"`
		N        int
	}
	refusedBy[named](t, formats{csv, parquet}, "field embedded of export_test.named")
	failing(t, named{embedded{"secret\xff"}, 1}, "embedded.Name", jsonl, avro)
	for format, want := range map[export.Format]string{jsonl: `{"in":{"Name":"a"},"N":1}` + "\n"} {
		file, err := one(t, export.Options{Format: format}, named{embedded{"a"}, 1})
		if err != nil || string(file) != want {
			t.Errorf("%q, want %q; %v", file, want, err)
		}
	}
	type twins struct {
		embedded `json:"X" csv:"-" avro:"X" parquet:"-"`
		X        string
	}
	refusedBy[twins](t, formats{jsonl, jsons, avro}, "fields embedded and X of export_test.twins", `"X"`)
	type pointed struct {
		*embedded `json:"in" csv:"-" avro:"in" parquet:"-"`
		N         int
	}
	refusedBy[pointed](t, nil)
	failing(t, pointed{&embedded{"secret\xff"}, 1}, "embedded.Name", jsonl, avro)
	written(t, pointed{}, jsonl, csv, avro, parquet)
	type called struct { // encoding/json panics when it calls its methods
		timeIn  `json:"in" csv:"in" avro:"in" parquet:"-"`
		aliased `json:"deep" csv:"-" avro:"-" parquet:"-"` //nolint:unused // its methods are called
		N       int
	}
	refusedBy[called](t, formats{jsonl, jsons, csv, avro}, "field timeIn of export_test.called")
	type tagged struct {
		n int `csv:"n" avro:"n" parquet:"n"` //nolint:unused // that is what is refused
		N int `csv:"m" avro:"m" parquet:"m"`
	}
	refusedBy[tagged](t, formats{csv, avro, parquet}, "field n of export_test.tagged", "not exported")
	type basic struct {
		small //nolint:unused // that is what is refused
		N     int
	}
	refusedBy[basic](t, all, "field small of export_test.basic")
	type without struct {
		small `json:"-" csv:"-" avro:"-" parquet:"-"` //nolint:unused // nobody sees it
		n     int                                     //nolint:unused // nobody sees it
		N     int
	}
	refusedBy[without](t, nil)
}
