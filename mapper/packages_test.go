package mapper_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// ordered are the packages below mapper/internal, in order: each imports only earlier ones.
var ordered = []string{"keyspace", "fault", "recent", "pace", "property", "tally", "split", "undolog", "record",
	"query", "ledger", "estimate", "gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey",
	"planner", "page", "observe", "lifecycle", "testworld", "executor"}

// acting are the packages that call the database. The others only decide, so they need no client
// and no clock.
var acting = []string{"gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey", "planner",
	"page", "observe", "lifecycle", "testworld", "executor"}

// actingNames are the names that a deciding package must not use, because they need a clock or a
// client.
var actingNames = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer",
		"NewTicker"},
	"cloud.google.com/go/datastore": {"Client", "NewClient", "NewClientWithDatabase", "Transaction", "Iterator",
		"NewTransaction"},
}

// neutral are packages outside of mapper/internal that every package may import, because they have
// no clock and no client.
var neutral = []string{"github.com/scattermap/scattermap/internal/names",
	"github.com/scattermap/scattermap/internal/value",
	"github.com/scattermap/scattermap/internal/setting",
	"github.com/scattermap/scattermap/internal/strictjson"}

// clients are packages, or prefixes of their paths, that a deciding package must not import.
var clients = []string{"net", "os", "math/rand", "google.golang.org/api", "google.golang.org/grpc",
	"cloud.google.com/go/cloudtasks", "github.com/scattermap"}

// TestPackages checks the imports below mapper/internal. Each package may import only earlier ones.
// Packages that decide must not use a clock or a client.
func TestPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`,
		"./internal/...").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const below = "github.com/scattermap/scattermap/mapper/internal/"
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(ordered) {
		t.Errorf("%d packages, want %q", len(lines), ordered)
	}
	for _, line := range lines {
		path, imports, _ := strings.Cut(line, " ")
		at := slices.Index(ordered, strings.TrimPrefix(path, below))
		if at < 0 {
			t.Errorf("%s is not among %q", path, ordered)
			continue
		}
		for imported := range strings.FieldsSeq(imports) {
			name, inside := strings.CutPrefix(imported, below)
			if inside && slices.Contains(ordered[:at], name) {
				continue
			}
			if !inside && slices.Contains(acting, ordered[at]) {
				continue
			}
			if slices.Contains(neutral, imported) {
				continue
			}
			if ordered[at] == "fault" && (imported == "google.golang.org/grpc/codes" ||
				imported == "google.golang.org/grpc/status") {
				continue // only for the codes of errors
			}
			if ordered[at] == "estimate" && imported == "github.com/scattermap/scattermap/billing" {
				continue // prices
			}
			if imported == "github.com/scattermap/scattermap/internal/pbvalue" ||
				imported == "github.com/scattermap/scattermap/internal/pbkey" {
				continue // conversions of values
			}
			if ordered[at] == "estimate" && imported == "math/rand/v2" {
				continue // used with a fixed seed
			}
			if slices.ContainsFunc(clients, func(c string) bool {
				return imported == c || strings.HasPrefix(imported, c+"/") || strings.HasPrefix(imported, c+"-")
			}) || strings.HasPrefix(imported, "github.com/scattermap") {
				t.Errorf("%s imports %s", path, imported)
			}
		}
		files, err := filepath.Glob(filepath.Join("internal", ordered[at], "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") && !slices.Contains(acting, ordered[at]) {
				decides(t, file)
			}
		}
	}
}

// decides checks that a file of a deciding package uses neither a clock nor a client.
func decides(t *testing.T, file string) {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	imported := make(map[string]string)
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		if imported[filepath.Base(path)] = path; i.Name != nil {
			imported[i.Name.Name] = path
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if s, ok := n.(*ast.SelectorExpr); ok {
			if p, ok := s.X.(*ast.Ident); ok && slices.Contains(actingNames[imported[p.Name]], s.Sel.Name) {
				t.Errorf("%s uses %s.%s", file, p.Name, s.Sel.Name)
			}
		}
		return true
	})
}
