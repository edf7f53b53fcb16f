package jobsapi_test

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/auth"
	"github.com/scattermap/scattermap/billing"
	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/jobsapi"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/tasks"
)

var writePage = flag.Bool("write", false, "write the answers that TestPageRequests gets into docs/jobs-api.md")

const pagePath = "../docs/jobs-api.md"

func readPage(t *testing.T) string {
	t.Helper()
	page, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

// routesOf returns the routes of the handler, such as "POST /jobs/ID/pause".
func routesOf(t *testing.T) map[string]bool {
	t.Helper()
	source, err := os.ReadFile("handler.go")
	if err != nil {
		t.Fatal(err)
	}
	routes := make(map[string]bool)
	for _, m := range regexp.MustCompile(`handle\("(GET|POST) ([^"]*)", `).FindAllStringSubmatch(string(source), -1) {
		routes[m[1]+" /jobs"+strings.Replace(m[2], "{id}", "ID", 1)] = true
	}
	for _, m := range regexp.MustCompile(`"(\w+)": \(\*mapper\.Job\)\.`).FindAllStringSubmatch(string(source), -1) {
		routes["POST /jobs/ID/"+m[1]] = true
	}
	if len(routes) < 17 {
		t.Errorf("the handler has the routes %v", routes)
	}
	return routes
}

// TestDocRoutes compares the routes that the package's documentation lists with the handler's.
func TestDocRoutes(t *testing.T) {
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^//\t(GET|POST) +(\S+)`).FindAllStringSubmatch(string(doc), -1) {
		listed[m[1]+" "+m[2]] = true
	}
	if routes := routesOf(t); !maps.Equal(listed, routes) {
		t.Errorf("doc.go lists %v, and the handler has %v", listed, routes)
	}
}

// TestPageRoutes compares the routes and parameters that docs/jobs-api.md lists with the handler's.
func TestPageRoutes(t *testing.T) {
	routes := routesOf(t)
	o := newOffice(t)
	h := o.handler(&jobsapi.Options{Allow: auth.Anybody})
	for _, m := range regexp.MustCompile("(?m)^\\| `((?:GET|POST) [^`]+)` \\|[^|]*\\|([^|]*)\\|").FindAllStringSubmatch(
		readPage(t), -1) {
		route := m[1]
		if !routes[route] {
			t.Errorf("the page has %s, and the handler does not", route)
		}
		delete(routes, route)
		method, path, _ := strings.Cut(route, " ")
		said := o.ask(h, method, strings.Replace(path, "ID", "x", 1)+"?none=1", "", 400, nil)
		var answer struct{ Error string }
		if err := json.Unmarshal([]byte(said), &answer); err != nil {
			t.Fatal(err)
		}
		_, have, _ := strings.Cut(answer.Error, "have ")
		if want := strings.NewReplacer("`", "", "–", "none").Replace(strings.TrimSpace(m[2])); have != want {
			t.Errorf("%s has the parameters %q, and on the page %q", route, have, want)
		}
	}
	for route := range routes {
		t.Errorf("the page lacks %s", route)
	}
}

// pageTypes are the types whose fields docs/jobs-api.md lists.
var pageTypes = []any{mapper.StartOptions{}, mapper.Query{}, mapper.Rate{}, mapper.Budget{}, mapper.RetryPolicy{},
	mapper.Splitting{}, mapper.CleanUpOptions{}, mapper.Status{}, mapper.Progress{}, mapper.CountBounds{},
	mapper.Bounds{}, mapper.KindStatus{},
	mapper.JobInfo{}, mapper.Failure{}, mapper.FailureCause{}, mapper.NotUndone{}, mapper.Example{},
	mapper.ExampleProperty{}, mapper.HistoryEntry{}, mapper.Proof{}, mapper.Estimate{}, billing.Usage{},
	operator.Mapper{}, operator.MapperParam{}}

// TestPageFields compares the fields of docs/jobs-api.md, their types and their order with the
// fields of the Go types.
func TestPageFields(t *testing.T) {
	page := readPage(t)
	headings := make(map[string]string) // the heading of each type's section in the page, by the type's name
	heading := ""
	for line := range strings.Lines(page) {
		if text, ok := strings.CutPrefix(line, "### "); ok {
			heading = strings.ToLower(strings.TrimSpace(text))
		} else if text, ok := strings.CutPrefix(line, "<!-- fields "); ok {
			headings[strings.TrimSuffix(strings.TrimSpace(text), " -->")] = heading
		}
	}
	if len(headings) != len(pageTypes) {
		t.Errorf("the page has the types %v", headings)
	}
	for _, v := range pageTypes {
		typ := reflect.TypeOf(v)
		_, section, found := strings.Cut(page, "<!-- fields "+typ.String()+" -->\n")
		if !found {
			t.Errorf("the page lacks %v", typ)
			continue
		}
		section, _, _ = strings.Cut(section, "\n#")
		var got, want []string
		for _, m := range regexp.MustCompile("(?m)^- (`[^`]+` \\(.*?\\)): .+$").FindAllStringSubmatch(section, -1) {
			got = append(got, m[1])
		}
		for f := range typ.Fields() {
			if !f.IsExported() {
				continue
			}
			name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			want = append(want, fmt.Sprintf("`%s` (%s)", name, jsonType(f.Type, headings)))
		}
		if !slices.Equal(got, want) {
			t.Errorf("the page has for %v\n%s\nwant\n%s", typ, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// jsonType returns the name that docs/jobs-api.md has for a Go type.
func jsonType(t reflect.Type, headings map[string]string) string {
	switch t {
	case reflect.TypeFor[time.Time]():
		return "time"
	case reflect.TypeFor[time.Duration]():
		return "nanoseconds"
	case reflect.TypeFor[*datastore.Key]():
		return "key"
	case reflect.TypeFor[json.RawMessage]():
		return "JSON"
	case reflect.TypeFor[mapper.Filter]():
		return "[filter](queries.md#values-of-filters)"
	}
	switch t.Kind() {
	case reflect.String:
		return "text"
	case reflect.Bool:
		return "boolean"
	case reflect.Int, reflect.Int64:
		return "integer"
	case reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of " + jsonType(t.Elem(), headings)
	case reflect.Map:
		return "object of " + jsonType(t.Elem(), headings)
	}
	heading := headings[t.String()]
	return fmt.Sprintf("[%s](#%s)", heading, strings.ReplaceAll(heading, " ", "-"))
}

type client struct {
	Balance int64
	Open    bool
}

// A pageService is the service to which the test sends the requests of docs/jobs-api.md. Its queue
// "day" delivers tasks, and its queue "night" does not.
type pageService struct {
	*testing.T
	api    http.Handler
	engine *mapper.Engine
	db     *datastore.Client
}

func newPageService(t *testing.T) *pageService {
	t.Helper()
	var worker http.Handler
	e := emulator.ForTest(t, &emulator.Options{Transport: emulator.HandlerTransport(http.HandlerFunc(
		func(w http.ResponseWriter, r *http.Request) { worker.ServeHTTP(w, r) }))})
	s := &pageService{T: t}
	var err error
	if s.db, err = e.DatastoreClient(t.Context(), "test", mapper.ClientOption()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.db.Close() })
	for i := range 10 {
		c := client{Balance: int64(i), Open: true}
		if i == 3 {
			c.Balance = -5
		}
		if _, err := s.db.Put(t.Context(), datastore.NameKey("Account", fmt.Sprint("a", i), nil), &c); err != nil {
			t.Fatal(err)
		}
	}
	taskClient, err := e.TasksClient(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { taskClient.Close() })
	var queues []*tasks.Queue
	for _, name := range []string{location + "/queues/day", location + "/queues/night"} {
		if _, err := taskClient.CreateQueue(t.Context(), &cloudtaskspb.CreateQueueRequest{Parent: location,
			Queue: &cloudtaskspb.Queue{Name: name,
				RateLimits: &cloudtaskspb.RateLimits{MaxConcurrentDispatches: 1}}}); err != nil {
			t.Fatal(err)
		}
		q, err := tasks.NewQueue(taskClient, name, "http://worker/mapper/", &tasks.Options{InsecureSkipVerify: true})
		if err != nil {
			t.Fatal(err)
		}
		queues = append(queues, q)
	}
	if _, err := taskClient.PauseQueue(t.Context(), &cloudtaskspb.PauseQueueRequest{
		Name: queues[1].Name()}); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	add := mapper.Update("add-credit", creditClient)
	if s.engine, err = mapper.NewEngine(s.db, queues[0], &mapper.EngineOptions{Mappers: []mapper.AnyMapper{add},
		OtherQueues: queues[1:], Logger: log}); err != nil {
		t.Fatal(err)
	}
	worker = s.engine.Handler()
	if s.api, err = jobsapi.NewHandler(s.engine, &jobsapi.Options{Logger: log,
		Allow: func(*http.Request) (string, error) { return "ann@example.com", nil }}); err != nil {
		t.Fatal(err)
	}
	return s
}

// creditClient is the function of the mapper in the page's examples.
func creditClient(_ context.Context, a *mapper.Entity[client], p credit) error {
	if a.Value.Balance < 0 {
		return fmt.Errorf("balance is %d", a.Value.Balance)
	}
	a.Value.Balance += p.Amount
	return nil
}

// do carries out what a comment in a code block of the page says. It waits for a job, starts a job
// whose tasks are not delivered, or changes an account.
func (s *pageService) do(what, name string) {
	s.Helper()
	switch what {
	case "wait":
		if _, err := s.engine.Job(name).Wait(s.Context()); err != nil {
			s.Fatal(err)
		}
	case "start":
		s.send([]string{"POST /jobs", fmt.Sprintf(`{"mapper": "add-credit", "id": %q, "queue": "night",
			"query": {"kind": "Account"}, "params": {"Amount": 20}}`, name)})
	case "change":
		if _, err := s.db.Put(s.Context(), datastore.NameKey("Account", name, nil), &client{Balance: 70,
			Open: true}); err != nil {
			s.Fatal(err)
		}
	default:
		s.Fatalf("the page says %s %s", what, name)
	}
}

// send sends a request that the page shows, and returns the status code and the lines of the
// answer.
func (s *pageService) send(lines []string) (code int, answer []string) {
	s.Helper()
	method, path, _ := strings.Cut(lines[0], " ")
	w := httptest.NewRecorder()
	s.api.ServeHTTP(w, httptest.NewRequest(method, path, strings.NewReader(strings.TrimSpace(strings.Join(lines[1:],
		"\n")))))
	conforms(s.T, method, path, w.Code, w.Body.Bytes())
	var text bytes.Buffer
	if err := json.Indent(&text, bytes.TrimSpace(w.Body.Bytes()), "", "  "); err != nil {
		s.Fatalf("%s: %v: %s", lines[0], err, w.Body)
	}
	return w.Code, strings.Split(text.String(), "\n")
}

// pageVaries matches the parts of answers that differ from run to run.
var pageVaries = regexp.MustCompile(`"\d{4}-\d{2}-\d{2}T[^"]*"|"(?:takes_ns|rate|overall|dollars(?:_total)?|pages|` +
	`full_pages|tasks|depth|reads|small_ops|writes|deletes|task_ops)": [\d.e-]+`)

// TestPageRequests sends the requests in docs/jobs-api.md in their order, and compares the answers
// with the page.
func TestPageRequests(t *testing.T) {
	page := readPage(t)
	s := newPageService(t)
	before, rest, _ := strings.Cut(page, "<!-- requests -->\n")
	requests, after, found := strings.Cut(rest, "<!-- requested -->\n")
	if !found {
		t.Fatal("the page has no requests")
	}
	comment := regexp.MustCompile(`^<!-- (\w+) (\S+) -->$`)
	lines := strings.Split(requests, "\n")
	var written, answer []string
	code, request := 200, ""
	// block returns the lines of the code block that starts at a line, and the number of the line
	// after it.
	block := func(i int) ([]string, int) {
		n := slices.Index(lines[i:], "```")
		return lines[i : i+n], i + n
	}
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		written = append(written, line)
		if m := comment.FindStringSubmatch(line); m != nil {
			s.do(m[1], m[2])
		}
		var text []string
		switch line {
		case "```http":
			if code != 200 {
				t.Errorf("%s is answered by %d, and the page has no answer", request, code)
			}
			text, i = block(i + 1)
			request = text[0]
			code, answer = s.send(text)
			written = append(append(written, text...), "```")
		case "```json":
			text, i = block(i + 1)
			if pageVaries.ReplaceAllString(strings.Join(text, "\n"), "…") !=
				pageVaries.ReplaceAllString(strings.Join(answer, "\n"), "…") {
				if !*writePage {
					t.Errorf("%s is answered by\n%s\nand on the page by\n%s\ngo test ./jobsapi -run TestPageRequests "+
						"-args "+
						"-write writes it", request, strings.Join(answer, "\n"), strings.Join(text, "\n"))
				}
				text = answer
			}
			code = 200
			written = append(append(written, text...), "```")
		}
	}
	if *writePage {
		if err := os.WriteFile(pagePath, []byte(before+"<!-- requests -->\n"+strings.Join(written, "\n")+
			"<!-- requested -->\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
