package export

import (
	"encoding"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"
)

// refusedIn checks that the given formats refuse the type R of records, with errors that contain
// all texts in want. The other formats must accept the type.
func refusedIn[R any](t *testing.T, formats []Format, want ...string) {
	t.Helper()
	for _, format := range []Format{JSONLines, JSON, CSV, Avro, Parquet} {
		_, err := coderOf[R](&Options{Format: format})
		if slices.Contains(formats, format) != (err != nil) {
			t.Errorf("%s: %T: %v, want that it is refused: %t", format, *new(R), err, err == nil)
			continue
		}
		for _, w := range want {
			if err != nil && !strings.Contains(err.Error(), w) {
				t.Errorf("%s: %v, want an error with %q", format, err, w)
			}
		}
	}
}

// wantFile checks the content of a file with one record.
func wantFile[R any](t *testing.T, format Format, record R, want string) {
	t.Helper()
	if got, err := fileOf(Options{Format: format}, record); err != nil || got != want {
		t.Errorf("%s: %q, %v, want %q", format, got, err, want)
	}
}

// TestColumnNames checks the names of columns, which come from tags. A field is left out only if
// its tag says so.
func TestColumnNames(t *testing.T) {
	type dashes struct {
		A int `json:"-" csv:"-" avro:"-" parquet:"-"`
		B int `json:"-," csv:"-," avro:"B" parquet:"B"` //nolint:staticcheck // the tag is what the test is about
		C int `json:"-" csv:"-,omitempty" avro:"-" parquet:"-"`
		D int `json:"b-1.:2" csv:"d" avro:"d" parquet:"d"`
		e int
	}
	refusedIn[dashes](t, nil)
	wantFile(t, JSONLines, dashes{1, 2, 3, 4, 5}, `{"-":2,"b-1.:2":4}`+"\n")
	wantFile(t, CSV, dashes{1, 2, 3, 4, 5}, "-,d\r\n2,4\r\n")
	type other struct {
		A string `json:"-,omitempty"` //nolint:staticcheck // the tag is what the test is about
	}
	wantFile(t, JSONLines, other{"a"}, `{"-":"a"}`+"\n")
	recordOf(JSONLines, "field A: it is a text that is not valid", other{"\xff"}).check(t)
	type quoted struct {
		A int `json:"a'b"` //nolint:staticcheck // the tag is what the test is about
	}
	refusedIn[quoted](t, []Format{JSONLines, JSON}, "field A of export.quoted", "characters that encoding/json")
	refusedIn[int](t, []Format{CSV, Avro, Parquet}, "int")
	wantFile(t, JSONLines, 7, "7\n")

	// For a struct that embeds a time.Time, MarshalText writes only the time. So the struct's other
	// fields are lost, unless their tags leave them out.
	type dashed struct {
		time.Time
		X int `csv:"-," json:"-" avro:"-" parquet:"-"`
	}
	type withDashed struct {
		A dashed `json:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[withDashed](t, []Format{CSV}, "field A of export.withDashed", "its field X would be left out")
}

type (
	textOnly  struct{ n int } //nolint:unused // only its type matters
	jsonOnly  struct{ n int } //nolint:unused // only its type matters
	jsonOther = brokenP
	basic     string //nolint:unused // it is embedded
	deep1     struct{ time.Time }
	deep2     struct{ deep1 }
	shallow   struct{ n int } //nolint:unused // only its type matters

	selfish struct { // a struct that embeds itself
		*selfish //nolint:unused // only its type matters
		time.Time
	}
	me struct {
		*me //nolint:unused // only its type matters
		N   int
	}
	hiddenMe struct {
		*hiddenMe     //nolint:unused // only its type matters
		n         int //nolint:unused // nobody sees it
	}
	nodes  struct{ Kids []nodes }
	forest struct{ L []nodes }

	zero1    struct{ A int }
	zero2    struct{ B int }
	zeroText struct{ A int }
	byPtr    struct{ N int }
	holdsPtr struct{ byPtr }
	octet    uint8
	octetJ   uint8
	keyed    struct{ A, B string }
	broken   struct{ Text, Err string }
	brokenP  struct{ Text, Err string }
	textErr  struct{ N int }
)

func (textOnly) MarshalText() ([]byte, error) { return []byte("text"), nil }
func (*textOnly) UnmarshalText([]byte) error  { return nil }
func (*shallow) UnmarshalText([]byte) error   { return nil }
func (*textErr) UnmarshalText([]byte) error   { return nil }
func (jsonOnly) MarshalJSON() ([]byte, error) { return []byte("1"), nil }
func (shallow) MarshalText() ([]byte, error)  { return []byte("shallow"), nil }
func (shallow) MarshalJSON() ([]byte, error)  { return []byte(`"shallow"`), nil }
func (zero1) IsZero() bool                    { return true }
func (zero2) IsZero() bool                    { return true }
func (*zeroText) IsZero() bool                { return true }
func (*byPtr) MarshalJSON() ([]byte, error)   { return []byte(`"by pointer"`), nil }
func (o octet) MarshalText() ([]byte, error)  { return []byte{byte(o)}, nil }
func (o *octetJ) MarshalJSON() ([]byte, error) {
	if *o == 0 {
		return nil, errPipe
	}
	return []byte{'1'}, nil
}
func (k keyed) MarshalText() ([]byte, error)    { return []byte(k.A + k.B), nil }
func (b broken) MarshalJSON() ([]byte, error)   { return []byte(b.Text), errorOf(b.Err) }
func (b *brokenP) MarshalJSON() ([]byte, error) { return []byte(b.Text), errorOf(b.Err) }
func (textErr) MarshalText() ([]byte, error)    { return []byte("\xff"), errPipe }

func errorOf(text string) error {
	if text == "" {
		return nil
	}
	return errors.New(text)
}

// TestFieldsBesideMethods checks structs that get their MarshalText or MarshalJSON from an embedded
// field. If other fields would be lost, the type is refused. The error names the field whose method
// Go calls.
func TestFieldsBesideMethods(t *testing.T) {
	const jsonl, jsons, csv, avro = JSONLines, JSON, CSV, Avro
	texts, js := []Format{jsonl, jsons, csv, avro}, []Format{jsonl, jsons}
	type both struct {
		textOnly
		jsonOnly
	}
	type r1 struct {
		A both `parquet:"-"`
		N int
	}
	refusedIn[r1](t, texts, "field A of export.r1", "Only would be left out")
	type named struct {
		time.Time
		basic //nolint:unused // that is what is refused
	}
	type r2 struct {
		A named `parquet:"-"`
		N int
	}
	refusedIn[r2](t, texts, "field A of export.r2", "its field basic would be left out")
	type r3 struct {
		A selfish `parquet:"-"`
		N int
	}
	refusedIn[r3](t, texts, "field A of export.r3", "its field selfish would be left out")
	type twoDepths struct {
		deep2
		shallow
	}
	type r4 struct {
		A twoDepths `parquet:"-"`
		N int
	}
	refusedIn[r4](t, texts, "from its embedded field shallow, so its field deep2 would be left out")
	type shallowFirst struct {
		shallow
		deep2
	}
	type r5 struct {
		A shallowFirst `parquet:"-"`
		N int
	}
	refusedIn[r5](t, texts, "from its embedded field shallow, so its field deep2 would be left out")
	type ambiguous struct { // has no method IsZero, because two embedded fields have one
		zero1
		zero2
	}
	type r6 struct {
		A ambiguous `json:",omitzero" csv:"-"`
		N int
	}
	refusedIn[r6](t, nil)
	type pointed struct {
		zeroText
		B int
	}
	type r7 struct {
		A pointed `json:",omitzero" csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[r7](t, js, "gets its IsZero from", "its field B would be left out")
	type r8 struct {
		A holdsPtr `csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[r8](t, nil)
	wantFile(t, jsonl, r8{N: 1}, `{"A":"by pointer","N":1}`+"\n")
	type r9 struct {
		A encoding.TextMarshaler `json:",omitzero" csv:"A" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[r9](t, nil)
	wantFile(t, jsonl, r9{A: shallow{}, N: 1}, `{"A":"shallow","N":1}`+"\n")
	type zeroAnd struct {
		zero1
		B int
	}
	type r10 struct {
		A *zeroAnd `json:",omitzero" csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[r10](t, js, "gets its IsZero from", "its field B would be left out")
	type full struct {
		time.Time
		H hiddenMe
	}
	type r11 struct {
		A full `parquet:"-"`
		N int
	}
	refusedIn[r11](t, texts, "field A of export.r11", "its field H would be left out")
}

// TestEmbeddedFields checks embedded and unexported fields. A format must refuse those that it
// would leave out or can't write, and write all others.
func TestEmbeddedFields(t *testing.T) {
	all := []Format{JSONLines, JSON, CSV, Avro, Parquet}
	refusedIn[me](t, all, "embedded")
	refusedIn[hiddenMe](t, all, "embedded")
	type holdsMe struct {
		A hiddenMe `csv:"-"`
		N int
	}
	refusedIn[holdsMe](t, []Format{JSONLines, JSON, Avro, Parquet}, "field A of export.holdsMe")
	refusedIn[forest](t, []Format{CSV, Parquet}, "L")
	refusedIn[struct{ A hiddenTree }](t, []Format{CSV, Avro, Parquet}, "")
	type jsonly struct { // without the refusal, its fields would be written, and not its JSON
		jsonOnly
		N int
	}
	refusedIn[jsonly](t, all, "jsonOnly")
	type inlined struct {
		A zero1 `avro:",inline" csv:"-"`
		N int
	}
	refusedIn[inlined](t, nil)
	type inCells struct {
		A zero1 `csv:",inline"`
		N int
	}
	refusedIn[inCells](t, []Format{CSV}, "field A of export.inCells")
	type secretly struct {
		a zero1 `avro:",inline"` //nolint:unused // that is what is refused
		N int
	}
	refusedIn[secretly](t, []Format{Avro}, "field a of export.secretly", "not exported")
	type within struct {
		n int `csv:"n" avro:"n" parquet:"n"` //nolint:unused // that is what is refused
		N int `csv:"m" avro:"m" parquet:"m"`
	}
	type outer struct{ within }
	refusedIn[outer](t, []Format{CSV, Avro, Parquet}, "field n of export.within", "not exported")
	type tagged struct { // encoding/json panics when it calls the MarshalJSON of an unexported embedded field
		jsonOnly  `json:"in" csv:"-" avro:"-" parquet:"-"` //nolint:unused // that is what is refused
		jsonOther `json:"-" csv:"-" avro:"-" parquet:"-"`  //nolint:unused // so that tagged has no MarshalJSON
		N         int
	}
	refusedIn[tagged](t, []Format{JSONLines, JSON}, "field jsonOnly of export.tagged", "can't be called")
	type zeroes struct { // encoding/json panics when it calls the IsZero of an unexported embedded field
		zero1 `json:"in,omitzero" csv:"-" avro:"in" parquet:"-"`
		N     int
	}
	refusedIn[zeroes](t, []Format{JSONLines, JSON}, "field zero1 of export.zeroes", "can't be called")
	type fits struct { // accepted: without omitzero, encoding/json does not call IsZero
		zero1 `json:"in" csv:"-" avro:"in" parquet:"-"`
		N     int
	}
	refusedIn[fits](t, nil)
	wantFile(t, JSONLines, fits{zero1{1}, 2}, `{"in":{"A":1},"N":2}`+"\n")
	type small struct { // Parquet has no column for an embedded type that is not a struct
		basic //nolint:unused // that is what is refused
		N     int
	}
	refusedIn[small](t, all, "field basic of export.small")
	type left struct {
		A struct {
			N int `json:"-" avro:"-" parquet:"-"`
		} `csv:"-" avro:"-" parquet:"-"`
		N int
	}
	refusedIn[left](t, nil)
	wantFile(t, JSONLines, left{N: 1}, `{"A":{},"N":1}`+"\n")
	type dated struct {
		T time.Time `avro:",dateless" parquet:",dateless"`
	}
	refusedIn[dated](t, []Format{Avro, Parquet}, "field T of export.dated", "its tag has to say the precision")
	type texts struct {
		M map[textKind]int `csv:"-" parquet:"-"`
		N int
	}
	refusedIn[texts](t, []Format{Avro}, "M")
}

type (
	hiddenTree struct{ Kids []hiddenTree }
	textKind   string
)

func (k textKind) MarshalText() ([]byte, error) { return []byte("k" + k), nil }

// TestOwnJSON checks values that encode themselves as JSON or text. If such a method fails, or
// returns invalid JSON, the error must name the field.
func TestOwnJSON(t *testing.T) {
	type owns struct {
		A broken
		M map[string]broken
		P brokenP
		D any
	}
	good := broken{Text: "1"}
	for want, o := range map[string]owns{
		"": {good, map[string]broken{"a": good}, brokenP{Text: "1"}, good},
		"field A: json: error calling MarshalJSON": {A: broken{Err: "mine"}, P: brokenP{Text: "1"}},
		"field A: it is a text that is not valid":  {A: broken{Text: "\"\xff\""}, P: brokenP{Text: "1"}},
		"field M[…]: json: error": {
			A: good, M: map[string]broken{"a": {Err: "mine"}}, P: brokenP{Text: "1"}},
		"field M[…]: it is a text that": {
			A: good, M: map[string]broken{"a": {Text: "\"\xff\""}}, P: brokenP{Text: "1"}},
		"field P: json: error":       {A: good, P: brokenP{Err: "mine"}},
		"field P: it is a text that": {A: good, P: brokenP{Text: "\"\xff\""}},
		"field D: json: error":       {A: good, P: brokenP{Text: "1"}, D: broken{Err: "mine"}},
		"field D: it is a text that": {A: good, P: brokenP{Text: "1"}, D: broken{Text: "\"\xff\""}},
	} {
		recordOf(JSONLines, want, o).check(t)
	}
	type octets struct {
		A []octet
		B []octetJ
	}
	recordOf(JSONLines, "", octets{[]octet{'a'}, []octetJ{1}}).check(t)
	recordOf(JSONLines, "field A[1]: it is a text", octets{A: []octet{'a', 0xff}}).check(t)
	recordOf(JSONLines, "field B[1]: json: error", octets{B: []octetJ{1, 0}}).check(t)
	type keys struct{ M map[keyed]int }
	recordOf(JSONLines, "", keys{map[keyed]int{{"a", "b"}: 1, {"b", ""}: 2}}).check(t)
	recordOf(JSONLines, "field M: the map has two keys of one text",
		keys{map[keyed]int{{"a", "b"}: 1, {"ab", ""}: 2}}).check(t)
	recordOf(JSONLines, "field M: the map has a key that is not valid UTF-8", keys{map[keyed]int{{"\xff", ""}: 1}}).
		check(t)
	type numbered struct{ M map[int]string }
	wantFile(t, JSONLines, numbered{map[int]string{1: "a"}}, `{"M":{"1":"a"}}`+"\n")
	type failingText struct{ A textErr }
	for _, format := range []Format{JSONLines, CSV, Avro} {
		recordOf(format, "field A: "+errPipe.Error(), failingText{}).check(t)
	}
	type flags struct{ B []bool }
	wantFile(t, JSONLines, flags{[]bool{true}}, `{"B":[true]}`+"\n")
	wantFile[any](t, JSONLines, nil, "null\n")
}

// TestCompressions checks that files are compressed by the algorithm in the options.
func TestCompressions(t *testing.T) {
	type record struct{ A string }
	text := strings.Repeat("abc", 1000)
	for _, format := range []Format{JSONLines, JSON, CSV, Avro, Parquet} {
		for compression, magic := range map[Compression]string{
			Uncompressed: "", Gzip: "\x1f\x8b", Zstd: "\x28\xb5\x2f\xfd",
		} {
			file, err := fileOf(Options{Format: format, Compression: compression}, record{text})
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case compression == Uncompressed:
				if !strings.Contains(file, text) {
					t.Errorf("%s: the text is not in the file", format)
				}
				continue
			case format == Avro:
				magic = map[Compression]string{Gzip: "deflate", Zstd: "zstandard"}[compression]
			case format == Parquet:
				magic = "PAR1"
			}
			// a Parquet file also has bounds, so its size is not checked
			if !strings.Contains(file, magic) || len(file) > 1000 && format != Parquet {
				t.Errorf("%s %s: a text of %d bytes takes %d", format, compression, len(text), len(file))
			}
		}
	}
}

// TestFrames checks the texts around and between the records of a file.
func TestFrames(t *testing.T) {
	if file, err := fileOf(Options{Format: JSON}, 1, 2, 3); err != nil || file != "[\n1,\n2,\n3\n]\n" {
		t.Errorf("%q, %v", file, err)
	}
	tail := func(File) (head, tail string) { return "", "end" }
	var file strings.Builder
	c, err := coderOf[int](&Options{Format: JSON, Wrap: tail})
	if err == nil {
		err = c.join(&file, File{Of: 1}, func() (io.ReadCloser, error) { return nil, io.EOF })
	}
	if err != nil || file.String() != "end" {
		t.Errorf("a file without parts is %q, %v, want its tail", file.String(), err)
	}
	none := func(File) (head, tail string) { return "", "" }
	member, err := fileOf(Options{Format: JSON, Compression: Gzip, Wrap: none}, 1)
	if members := strings.Count(member, "\x1f\x8b"); err != nil || members != 1 {
		t.Errorf("a file of one part has %d members, %v", members, err)
	}
}

// TestQuotedCells checks which cells of CSV are quoted: those that a reader would otherwise
// misread.
func TestQuotedCells(t *testing.T) {
	type cells struct{ A, B string }
	for text, want := range map[string]string{
		"a b": "a b", "a ": `"a "`, "a\u2003": "\"a\u2003\"", " a": `" a"`, "\u00a0a": "\"\u00a0a\"", "\ta": "\"\ta\"",
		"\ufeffa": "\"\ufeffa\"", "a\ufeff": "a\ufeff", "a,b": `"a,b"`, `a"b`: `"a""b"`, "a\rb": "\"a\rb\"",
		"a\nb": "\"a\nb\"", "a\x00b": "\"a\x00b\"", `\.`: `"\."`, `\.a`: `\.a`, "": `""`,
	} {
		wantFile(t, CSV, cells{text, "z"}, "A,B\r\n"+want+",z\r\n")
	}
}
