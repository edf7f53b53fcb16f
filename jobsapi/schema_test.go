package jobsapi_test

import (
	"bytes"
	"encoding/json"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/apischema"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/mapper"
)

const schemaPath = "../docs/" + apischema.Path

// schemaTypes has the Go type of each definition in docs/jobs-api.schema.json, by the definition's
// name. The definitions describe answers of the jobs API and outputs of the command line. A list of
// the API has the field next; the command line prints only the list.
var schemaTypes = map[string]reflect.Type{
	"status": reflect.TypeFor[mapper.Status](), "estimate": reflect.TypeFor[mapper.Estimate](),
	"proof": reflect.TypeFor[mapper.Proof](),
	"jobs":  reflect.TypeFor[[]mapper.JobInfo](), "failures": reflect.TypeFor[[]mapper.Failure](),
	"causes": reflect.TypeFor[[]mapper.FailureCause](), "history": reflect.TypeFor[[]mapper.HistoryEntry](),
	"left": reflect.TypeFor[[]mapper.NotUndone](), "examples": reflect.TypeFor[[]mapper.Example](),
	"mappers": reflect.TypeFor[[]operator.Mapper](), "mapper": reflect.TypeFor[operator.Mapper](),
	"GET /jobs/mappers": reflect.TypeFor[operator.MapperList](),
	"GET /jobs": reflect.TypeFor[struct {
		Jobs []mapper.JobInfo `json:"jobs"`
		Next string           `json:"next,omitempty"`
	}](),
	"GET /jobs/ID/failures": reflect.TypeFor[struct {
		Failures []mapper.Failure `json:"failures"`
		Next     string           `json:"next,omitempty"`
	}](),
	"GET /jobs/ID/causes": reflect.TypeFor[struct {
		Causes []mapper.FailureCause `json:"causes"`
	}](),
	"GET /jobs/ID/history": reflect.TypeFor[struct {
		History []mapper.HistoryEntry `json:"history"`
	}](),
	"GET /jobs/ID/left": reflect.TypeFor[struct {
		Left []mapper.NotUndone `json:"left"`
		Next string             `json:"next,omitempty"`
	}](),
	"GET /jobs/ID/examples": reflect.TypeFor[struct {
		Examples []mapper.Example `json:"examples"`
	}](),
	"error": reflect.TypeFor[struct {
		Error   string   `json:"error"`
		Parts   []string `json:"error_parts,omitempty"`
		Request string   `json:"request,omitempty"`
	}](),
}

// TestSchema compares the JSON schema with the Go types and with the texts of docs/jobs-api.md.
func TestSchema(t *testing.T) {
	page := readPage(t)
	meaning := func(of reflect.Type, field string) string {
		_, section, _ := strings.Cut(page, "<!-- fields "+of.String()+" -->\n")
		section, _, _ = strings.Cut(section, "\n#")
		rows := regexp.MustCompile("(?m)^- `" + regexp.QuoteMeta(field) + "` \\(.*?\\): (.+)$")
		row := rows.FindStringSubmatch(section)
		if row == nil {
			return ""
		}
		return regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(row[1], "$1")
	}
	want, err := json.MarshalIndent(apischema.Of(schemaTypes, meaning), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	want = append(want, '\n')
	if *writePage {
		if err := os.WriteFile(schemaPath, want, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(schemaPath); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs from the Go types, or from docs/jobs-api.md (%v): write it by go test ./jobsapi -run "+
			"TestSchema -args -write", schemaPath, err)
	}
}

// answerOf returns the name of the schema's definition that describes the answer to a request.
func answerOf(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	switch parts := strings.Split(strings.Trim(path, "/"), "/"); {
	case method == "POST" && strings.HasSuffix(path, "/plan"):
		return "estimate"
	case strings.HasSuffix(path, "/mappers"):
		return "GET /jobs/mappers"
	case strings.HasSuffix(path, "/verify"):
		return "proof"
	case method == "GET" && len(parts) == 1:
		return "GET /jobs"
	case method == "GET" && len(parts) == 3:
		return "GET /jobs/ID/" + parts[2]
	}
	return "status"
}

// conforms checks that the answer to a request, with its status code, matches the schema of the
// jobs API.
func conforms(t *testing.T, method, path string, code int, answer []byte) {
	t.Helper()
	var schema map[string]any
	text, err := os.ReadFile(schemaPath)
	if err == nil {
		err = json.Unmarshal(text, &schema)
	}
	definition := answerOf(method, path)
	if code >= 400 {
		definition = "error"
	}
	if err == nil && string(bytes.TrimSpace(answer)) != "{}" { // after a clean-up the answer may be empty
		err = apischema.Check(schema, definition, answer)
	}
	if err != nil {
		t.Errorf("%s %s: %v", method, path, err)
	}
}
