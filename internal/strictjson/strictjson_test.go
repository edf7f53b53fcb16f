package strictjson

import (
	"encoding/json"
	"errors"
	"io"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	_ "github.com/scattermap/scattermap/internal/testflag"
)

type inner struct {
	N  int64       `json:"n"`
	At []time.Time `json:"at"`
}

type embedded struct {
	Deep   string `json:"deep"`
	Quoted int64  `json:"quoted,string"`
}

type params struct {
	Name   string `json:"name"`
	Float  float64
	Any    any             `json:"any"`
	Map    map[string]any  `json:"map"`
	List   []any           `json:"list"`
	Inner  inner           `json:"inner"`
	Inners []inner         `json:"inners"`
	ByName map[string]int  `json:"by_name"`
	Ptr    *inner          `json:"ptr"`
	Raw    json.RawMessage `json:"raw"`
	Number json.Number     `json:"number"`
	When   time.Time       `json:"when"`
	Pair   [2]int          `json:"pair"`
	ByID   map[int]int     `json:"by_id"`
	Yes    bool            `json:"ksi"`
	Key    *datastore.Key  `json:"key"`
	Bytes  []byte          `json:"bytes"`
	Wait   time.Duration   `json:"wait"`
	Small  uint8           `json:"small"`
	Hidden int             `json:"-"`
	Own    *itself         `json:"own"`
	Short  short           `json:"short"`
	None   struct{}        `json:"none"`
	embedded
}

// itself decodes itself, with Decode.
type itself struct{}

func (*itself) UnmarshalJSON(text []byte) error {
	return Decode(text, new(struct {
		Inner inner `json:"inner"`
	}))
}

// short decodes itself, and finds that its text ends too early.
type short struct{}

func (*short) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		return io.EOF
	}
	return io.ErrUnexpectedEOF
}

func TestDecode(t *testing.T) {
	for text, want := range map[string]string{ // "": Decode accepts the text
		`{}`: "", `{"name": "a"}`: "", `{"NAME": "a"}`: "", `{"deep": "a"}`: "",
		`{"name": "a", "name": "b"}`:                "\"name\" comes twice",
		`{"name": "a", "Name": "b"}`:                `"name" and "Name"`,
		`{"inner": {"n": 1, "N": 2}}`:               `"inner.N" comes twice`,
		`{"inners": [{"n": 1}, {"n": 1, "n": 1}]}`:  `"inners[1].n" comes twice`,
		`{"map": {"a": 1, "A": 2}}`:                 "",
		`{"map": {"a": 1, "a": 2}}`:                 `"map.a" comes twice`,
		`{"any": {"a": [{"b": 1, "\u0062": 2}]}}`:   `"any.a[0].b" comes twice`,
		`{"raw": {"a": 1, "a": 2}}`:                 `"raw.a" comes twice`,
		`{"nam": 1}`:                                `unknown field "nam": have "name", "Float", "any", "map"`,
		`{"Embedded": 1}`:                           `"bytes", "wait", "small", "own", "short", "none", "deep"`,
		`{"inner": {"m": 1}}`:                       `unknown field "inner.m": have "n", "at"`,
		`{"inners": [{}, {"m": 1}]}`:                `unknown field "inners[1].m": have "n", "at"`,
		`{"ptr": {"N ": 1}}`:                        `unknown field "ptr.N ": have "n", "at"`,
		`{"none": {"a": 1}}`:                        `unknown field "none.a"`,
		`{"own": {"inner": {"m": 1}}}`:              `"own" can't be read: unknown field "inner.m": have "n", "at"`,
		`{"name": null}`:                            `"name" is null`,
		`{"float": null}`:                           `"float" is null`,
		`{"number": null}`:                          `"number" is null`,
		`{"inner": null}`:                           `"inner" is null`,
		`{"inner": {"n": null}}`:                    `"inner.n" is null`,
		`{"inners": [null]}`:                        `"inners[0]" is null`,
		`{"by_name": {"a": null}}`:                  `"by_name.a" is null`,
		`{"deep": null}`:                            `"deep" is null`,
		`{"any": null, "map": null, "list": null}`:  "",
		`{"ptr": null, "raw": null}`:                "",
		`{"when": null}`:                            `"when" is null`,
		`{"pair": [1, 2]}`:                          "",
		`{"pair": [1, 2, 3]}`:                       `"pair" has 3 elements, and needs 2`,
		`{"pair": [1]}`:                             `"pair" has 1 elements`,
		`{"by_id": {"1": 1, "-1": 2}}`:              "",
		`{"by_id": {"1": 1, "01": 2}}`:              `"1" and "01"`,
		`{"ksi": true, "\u212a\u017fi": false}`:     "comes twice",
		`{"inners": null, "by_name": null}`:         "",
		`{"any": 9007199254740992}`:                 "",
		`{"any": 9007199254740993}`:                 `"any" is 9007199254740993`,
		`{"map": {"id": 9007199254740993}}`:         `"map.id" is 9007199254740993`,
		`{"list": [[{"a": -9223372036854775807}]]}`: `"list[0][0].a" is -9223372036854775807`,
		`{"any": 1e400}`:                            "1e400",
		`{"any": 0.1, "float": 0.1}`:                "",
		`{"any": 0.30000000000000004}`:              "",
		`{"any": 1e-400}`:                           `"any" is 1e-400`,
		`{"inner": {"n": 9007199254740993}}`:        "",
		`{"inner": {"n": 9223372036854775808}}`:     "inner.n",
		`{"number": 9007199254740993}`:              "",
		`{"name": 1}`:                               `"name" is a number, and has to be a string`,
		`{"ksi": "yes"}`:                            `"ksi" is a string, and has to be true or false`,
		`{"float": "0.19"}`:                         `"float" is a string, and has to be a number (float64)`,
		`{"wait": "5s"}`:                            `"wait" is a string, and has to be an integer of nanoseconds`,
		`{"wait": 1.5}`:                             `"wait" is a number 1.5, and has to be an integer of nanoseconds`,
		`{"small": 256}`:                            `"small" is a number 256, and has to be an integer of at least 0`,
		`{"map": "a"}`:                              `"map" is a string, and has to be an object`,
		`{"pair": 1}`:                               `"pair" is a number, and has to be a list`,
		`{"bytes": 1}`:                              `"bytes" is a number, and has to be a string in base64`,
		`{"bytes": "?"}`:                            `"bytes" is "?", and has to be a string in base64`,
		`{"key": "abc"}`:                            `"key" is "abc", and has to be a key: the text of Key.Encode`,
		`{"key": 5}`:                                `"key" is 5, and has to be a key: the text of Key.Encode`,
		`{"short": ""}`:                             `"short" can't be read: EOF`,
		`{"short": "a"}`:                            `"short" can't be read: unexpected EOF`,
		`{"deep": 1}`:                               `"deep" is a number`,
		`{"quoted": 1}`:                             "quoted",
		`{"inner": [1]}`:                            `"inner" is an array, and has to be an object`,
		`{"list": {}}`:                              `"list" is an object, and has to be a list`,
		`[]`:                                        `the value is an array, and has to be an object`,
		`{"when": "now"}`:                           `is "now", and has to be a time: it is written as "2026-10-24T`,
		`{"when": 5}`:                               `"when" is 5, and has to be a time`,
		`{"inners": [{}, {"at": ["2026", "now"]}]}`: `"inners[1].at[0]" is "2026", and has to be a time`,
		`{"ptr": {"n": "1"}}`:                       `"ptr.n" is a string`,
		`{"by_name": {"a": 1, "b": true}}`:          `"by_name.b" is a bool`,
		`{"by_id": {"a": 1}}`:                       `"by_id" is a number a`,
		`{"name": "\ud83d\ude00 \\ud800 \""}`:       "",
		`{"name": "\ud83d"}`:                        "half of a character",
		`{"name": "\ude00\ud83d"}`:                  "half of a character",
		`{"map": {"\ud800": 1}}`:                    "half of a character",
		"{\"name\": \"\xff\"}":                      "UTF-8",
		`{} {}`:                                     "more than one",
		`{}x`:                                       "more than one",
		`{`:                                         "ends too early",
	} {
		err := Decode([]byte(text), new(params))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		nulls := strings.Contains(want, "is null")
		if err := DecodeNulls([]byte(text), new(params)); nulls && err != nil || !nulls &&
			(err == nil) != (want == "") {
			t.Errorf("%s with nulls: %v", text, err)
		}
	}
	if err := Decode([]byte(" "), new(params)); !errors.Is(err, ErrMissing) {
		t.Errorf("nothing: %v", err)
	}
	if err := Check([]byte(`[9007199254740993, {"a": null}]`)); err != nil {
		t.Errorf("nothing is known of the type: %v", err)
	}
}

// TestExact compares Exact with exact arithmetic. A float64 holds a number exactly if it is the
// nearest float64, and printing it gives all digits of the number.
func TestExact(t *testing.T) {
	for number, want := range map[string]bool{
		"0": true, "-0": true, "0.000": true, "0e99": true, "1": true, "100": true, "1e2": true, "1.50": true,
		"9007199254740993": false, "9007199254740992": true, "9007199254740993.0": false,
		"900719925474099.3e1": false, "0.1": true, "0.10000000000000001": true,
		"0.100000000000000005551115123125782702118158340454101562": true, "0.1000000000000000055511151231257829": false,
		"1e23": true, "123456789012345678": false, "1e309": false, "4.9e-324": true, "1e-324": false,
		"18446744073709551616": true, "18446744073709551615": false,
	} {
		if Exact(number) != want {
			t.Errorf("%s: %v, want %v", number, !want, want)
		}
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 20_000 {
		n := int64(r.Uint64()) >> r.IntN(64)
		text := strconv.FormatInt(n, 10)
		exact := new(big.Float).SetPrec(100).SetInt64(n)
		if f, _ := exact.Float64(); Exact(text) != (exact.Cmp(new(big.Float).SetPrec(100).SetFloat64(f)) == 0) {
			t.Fatalf("seed %d: %s: %v", seed, text, Exact(text))
		}
		if f := math.Float64frombits(r.Uint64()); !math.IsNaN(f) && !math.IsInf(f, 0) {
			for _, precision := range []int{-1, 17, 20} {
				if text := strconv.FormatFloat(f, 'e', precision, 64); !Exact(text) {
					t.Fatalf("seed %d: %s is not held", seed, text)
				}
			}
		}
	}
}
