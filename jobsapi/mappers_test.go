package jobsapi_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// odd has parameters of all types of JSON.
type odd struct {
	Count   int               `json:"count"`
	Share   float64           `json:"share,omitempty"`
	Until   time.Time         `json:"until"`
	Every   time.Duration     `json:"every"`
	Names   []string          `json:"names,omitempty"`
	Sizes   [][]int           `json:"sizes,omitempty"`
	Labels  map[string]bool   `json:"labels,omitempty"`
	Parent  *datastore.Key    `json:"parent"`
	Big     int64             `json:"big,string"`
	Data    []byte            `json:"data,omitempty"`
	Any     any               `json:"any,omitempty"`
	Deep    *struct{ X int }  `json:"deep,omitempty"`
	Nested  struct{ On bool } `json:"nested"`
	Endless endless           `json:"endless,omitempty"`
	hidden  int               //nolint:unused // must not be listed
}

type endless []endless

// TestMappers lists the mappers of an engine with their parameters.
func TestMappers(t *testing.T) {
	o := newOffice(t)
	look := mapper.Visit("look", func(context.Context, *mapper.Entity[account], odd) error { return nil })
	list := mapper.Visit("list", func(context.Context, *mapper.Entity[account], []int) error { return nil })
	inside := mapper.Update("inside", func(context.Context, *mapper.Entity[account], odd) error { return nil }).
		WithStarter(nil)
	e, err := mapper.NewEngine(o.engine.Client(), o.engine.Queue(), &mapper.EngineOptions{
		Mappers: append(prebuilt.Mappers(), addCredit.WithDescription("Credits accounts."), look, list, inside),
		Logger:  slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	o.engine = e
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	var answer struct {
		Mappers []json.RawMessage
		Queues  []string
		Kinds   []string
	}
	o.ask(h, "GET", "/jobs/mappers", "", 200, &answer)
	if answer.Kinds != nil || !slices.Equal(answer.Queues, []string{location + "/queues/day"}) {
		t.Errorf("kinds %q, queues %q", answer.Kinds, answer.Queues)
	}
	got := make([]string, len(answer.Mappers))
	for i, m := range answer.Mappers {
		got[i] = string(m)
	}
	for _, want := range []string{
		`{"name":"add-credit","mode":"update","description":"Credits accounts.","params":[{"name":"Amount",` +
			`"type":"integer"}]}`,
		`{"name":"delete","mode":"update","destroys":true,"description":"Deletes entities.","params":[]}`,
		`{"name":"list","mode":"visit","params":[{"name":"","type":"list of integer"}]}`,
		`{"name":"look","mode":"visit","params":[{"name":"count","type":"integer"},` +
			`{"name":"share","type":"number","optional":true},{"name":"until","type":"time"},` +
			`{"name":"every","type":"nanoseconds"},{"name":"names","type":"list of text","optional":true},` +
			`{"name":"sizes","type":"list of list of integer","optional":true},` +
			`{"name":"labels","type":"object of boolean","optional":true},` +
			`{"name":"parent","type":"key","optional":true},{"name":"big","type":"text"},` +
			`{"name":"data","type":"text","optional":true},{"name":"any","type":"JSON","optional":true},` +
			`{"name":"deep","type":"object","optional":true},{"name":"nested.On","type":"boolean"},` +
			`{"name":"endless","type":"list of list of list of list of JSON","optional":true}]}`,
		`{"name":"set","mode":"update","destroys":true,"description":"Sets a property to a value.","params":[` +
			`{"name":"property","type":"text"},{"name":"value","type":"JSON"},` +
			`{"name":"noindex","type":"boolean","optional":true}]}`,
	} {
		if !slices.Contains(got, want) {
			t.Errorf("the list lacks %s:\n%s", want, strings.Join(got, "\n"))
		}
	}
	if len(got) != len(prebuilt.Mappers())+3 || !slices.IsSorted(got) {
		t.Errorf("%d mappers: %s", len(got), strings.Join(got, "\n"))
	}
	if o.ask(h, "GET", "/jobs/mappers?kinds=true", "", 200, &answer); !slices.Equal(answer.Kinds, []string{"Account"}) {
		t.Errorf("kinds %q", answer.Kinds)
	}
	o.ask(h, "GET", "/jobs/mappers?kinds=yes", "", 400, nil)
}

// TestWords checks that no new job gets an ID that is a word of the API. A job of an earlier build
// may have such an ID, and continues.
func TestWords(t *testing.T) {
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	refused := func(path, body, word string) {
		if said := o.ask(h, "POST", path, body, 400, nil); !strings.Contains(said, `\"id\" is \"`+word+`\", which the `+
			`jobs API uses as a word: choose another ID`) {
			t.Errorf("%s %s: %s", path, body, said)
		}
	}
	start := func(id string) string {
		return `{"mapper": "add-credit", "query": {"kind": "Account"}, "params": {"Amount": 1}, "id": "` + id + `"}`
	}
	o.ask(h, "POST", "/jobs", start("spring"), 200, nil)
	words := 0
	for route := range routesOf(t) {
		_, word, below := strings.Cut(route, "/jobs/")
		if !below || strings.HasPrefix(word, "ID") {
			continue
		}
		words++
		if !names.Word(word) {
			t.Errorf("%s: a job may have the ID %q", route, word)
		}
		refused("/jobs", start(word), word)
		refused("/jobs/plan", start(word), word)
	}
	if words != 2 {
		t.Errorf("%d words", words)
	}
	// put the record of a job of an earlier build
	var record datastore.PropertyList
	client := o.engine.Client()
	if err := client.Get(t.Context(), mapper.JobKey("spring"), &record); err != nil {
		t.Fatal(err)
	}
	if _, err := client.Put(t.Context(), mapper.JobKey("plan"), &record); err != nil {
		t.Fatal(err)
	}
	o.ask(h, "POST", "/jobs/spring/abort", "", 200, nil)
	refused("/jobs/spring/undo", `{"id": "mappers"}`, "mappers")
	for _, r := range [][3]string{{"POST", "/jobs", start("plan")}, {"GET", "/jobs/plan", ""},
		{"POST", "/jobs/plan/pause", ""}, {"POST", "/jobs/plan/move", ""}, {"POST", "/jobs/plan/resume", ""},
		{"POST", "/jobs/plan/abort", ""}, {"GET", "/jobs/plan/history", ""}} {
		o.ask(h, r[0], r[1], r[2], 200, nil)
	}
}
