package value

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/strictjson"
)

// JSON is a value of a property in requests of the jobs API. The JSON values true, "text", 5 and
// null stand for themselves, and 5.0 is a float. Other values are objects that name their type:
// {"time": "2026-…"}, {"key": "…"} as from datastore.Key.Encode, {"bytes": "…"} in base64,
// {"float": "NaN"} or {"float": 5}, {"int": "5"}.
type JSON struct{ V any }

type typedValue struct {
	Time  *time.Time     `json:"time,omitempty"`
	Key   *datastore.Key `json:"key,omitempty"`
	Bytes *string        `json:"bytes,omitempty"`
	Float *number        `json:"float,omitempty"`
	Int   *number        `json:"int,omitempty"`
}

// A number is a JSON number, or a number in a JSON string. Some programs write 5.0 as 5, and some
// can't write large integers as numbers.
type number string

// UnmarshalJSON implements json.Unmarshaler.
func (n *number) UnmarshalJSON(b []byte) error {
	s := string(b)
	if strings.HasPrefix(s, `"`) {
		return json.Unmarshal(b, (*string)(n))
	}
	*n = number(s)
	return nil
}

// MarshalJSON implements json.Marshaler.
func (j JSON) MarshalJSON() ([]byte, error) {
	switch v := j.V.(type) {
	case time.Time:
		return json.Marshal(typedValue{Time: &v})
	case *datastore.Key:
		return json.Marshal(typedValue{Key: v})
	case []byte:
		s := base64.StdEncoding.EncodeToString(v)
		return json.Marshal(typedValue{Bytes: &s})
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return json.Marshal(typedValue{Float: (*number)(&s)})
		}
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return []byte(s), nil
	case nil, bool, int64, string:
		return json.Marshal(v)
	}
	return nil, fmt.Errorf("its value is a %T, which is not a bool, an int64, a float64, a string, a []byte, a "+
		"time.Time, a *datastore.Key or nil", j.V)
}

// UnmarshalJSON implements json.Unmarshaler.
func (j *JSON) UnmarshalJSON(b []byte) error {
	if strings.HasPrefix(strings.TrimSpace(string(b)), "{") {
		return j.typed(b)
	}
	d := json.NewDecoder(strings.NewReader(string(b)))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return err
	}
	n, number := v.(json.Number)
	if !number {
		if _, list := v.([]any); list {
			return errors.New("it is a list")
		}
		j.V = v
		return nil
	}
	var err error
	if strings.ContainsAny(n.String(), ".eE") {
		j.V, err = floatOf(n.String())
	} else {
		j.V, err = n.Int64()
	}
	return err
}

func (j *JSON) typed(b []byte) error {
	var t typedValue
	if err := strictjson.Decode(b, &t); err != nil {
		return err
	}
	var err error
	types := 0
	for _, there := range []bool{t.Time != nil, t.Key != nil, t.Bytes != nil, t.Float != nil, t.Int != nil} {
		if there {
			types++
		}
	}
	switch {
	case types > 1:
		err = errors.New("it is an object with several of time, key, bytes, float and int")
	case t.Time != nil:
		j.V = *t.Time
	case t.Key != nil:
		j.V = t.Key
	case t.Bytes != nil:
		j.V, err = base64.StdEncoding.DecodeString(*t.Bytes)
	case t.Float != nil:
		j.V, err = floatOf(string(*t.Float))
	case t.Int != nil:
		j.V, err = strconv.ParseInt(string(*t.Int), 10, 64)
	default:
		err = errors.New("it is an object without time, key, bytes, float or int")
	}
	return err
}

// floatOf returns the float for a JSON number. It returns an error if a float can't hold the number
// with all of its digits.
func floatOf(number string) (float64, error) {
	f, err := strconv.ParseFloat(number, 64)
	if err == nil && !math.IsNaN(f) && !math.IsInf(f, 0) && !strictjson.Exact(number) {
		err = fmt.Errorf("%.60s is no float: the nearest one is %v", number, f)
	}
	return f, err
}
