package record

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// TestStoredNames checks the property names under which fields of jobs and ranges are stored. If a
// name changed, a new build could not read the records of jobs that run during an upgrade.
func TestStoredNames(t *testing.T) {
	suspicion := "begun begun_at begun_alone seen_task seen_try doubtful solo deaths settled"
	for _, test := range []struct {
		record any
		want   string
	}{
		{new(Range), "job incarnation id open failed state generation depth start end namespace kind survey alone " +
			"samples estimate exact workers portion entity_size page_size narrowed " +
			"attempts refusals later_from refused_in not_before lost cut children given continued retries recorded " +
			"single entities keys seal processed written calls conflicts ran pace yielded full unsharded counters " +
			"wrote left left_of examples examples_of error created done expires " + suspicion},
		{new(Job), "incarnation needs history undo beside background mapper queue schedule query params state active " +
			"listed generation epoch forestalled page_size page_time timeout workers concurrency concurrent " +
			"splitting rate rate_until " +
			"rate_then ramp_from masks times limit_step limit limit_share limited budget poor spent allowance " +
			"before counters_lost counters_dropped attempts backoff_first backoff_max tolerant failures tried " +
			"finalizes finalized replaying replaying_of created ended error trouble totals drafted closing erased " +
			"retain retires retired cleaned_at cleaning cleaned expires " + suspicion},
		{new(Schedule), "tick outcome run queued waits slots past"},
		{new(Slot), "mapper kind job incarnation"},
	} {
		fill(reflect.ValueOf(test.record).Elem())
		saved, err := datastore.SaveStruct(test.record)
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, p := range saved {
			names = append(names, p.Name)
		}
		want := strings.Fields(test.want)
		slices.Sort(names)
		slices.Sort(want)
		if names = slices.Compact(names); !slices.Equal(names, want) {
			t.Errorf("%T: %q, want %q", test.record, names, want)
		}
	}
	sum := Totals{Lost: errors.New("lost"), Retrying: 1, Expected: 1}
	text, err := json.Marshal(sum)
	want := `{"processed":0,"failures":0,"pages":0,"full_pages":0,"ranges":0,"tasks":0,"pending":0,"depth":0}`
	if err != nil || string(text) != want {
		t.Errorf("%s, %v, want %s", text, err, want)
	}
}

// fill sets all fields of a struct to values, because the record leaves out empty fields.
func fill(v reflect.Value) {
	for i := range v.NumField() {
		f := v.Field(i)
		if !v.Type().Field(i).IsExported() {
			continue
		}
		switch f.Interface().(type) {
		case time.Time:
			f.Set(reflect.ValueOf(time.Unix(1, 0)))
			continue
		case *keyspace.Position:
			f.Set(reflect.ValueOf(&keyspace.Position{Kind: "K"}))
			continue
		case []*keyspace.Position:
			f.Set(reflect.ValueOf([]*keyspace.Position{{Kind: "K"}}))
			continue
		case *datastore.Key:
			f.Set(reflect.ValueOf(datastore.NameKey("K", "n", nil)))
			continue
		case []time.Time:
			f.Set(reflect.ValueOf([]time.Time{time.Unix(1, 0)}))
			continue
		}
		switch f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int64:
			f.SetInt(1)
		case reflect.Float64:
			f.SetFloat(1)
		case reflect.Slice:
			s := reflect.MakeSlice(f.Type(), 1, 1)
			if s.Index(0).Kind() == reflect.String {
				s.Index(0).SetString("x")
			}
			f.Set(s)
		case reflect.Struct:
			fill(f)
		}
	}
}
