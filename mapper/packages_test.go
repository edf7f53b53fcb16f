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

// rooms are the packages below mapper/internal, in order: each imports only earlier ones.
var rooms = []string{"keyspace", "fault", "recent", "pace", "property", "tally", "split", "undolog", "record", "query",
	"ledger",
	"estimate", "gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey", "planner",
	"page", "observe", "lifecycle", "testworld", "executor"}

// callers are the rooms that act: they call the database. The others decide.
var callers = []string{"gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey", "planner",
	"page", "observe", "lifecycle", "testworld", "executor"}

// acting are names that a deciding package does not use, because they need a clock or a client.
var acting = map[string][]string{
	"time": {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer",
		"NewTicker"},
	"cloud.google.com/go/datastore": {"Client", "NewClient", "NewClientWithDatabase", "Transaction", "Iterator",
		"NewTransaction"},
}

// notions are packages outside that everything may use: they have neither a clock nor a client.
var notions = []string{"github.com/scattermap/scattermap/internal/names",
	"github.com/scattermap/scattermap/internal/value",
	"github.com/scattermap/scattermap/internal/setting",
	"github.com/scattermap/scattermap/internal/strictjson"}

// clients are packages that a package which decides does not import.
var clients = []string{"net", "os", "math/rand", "google.golang.org/api", "google.golang.org/grpc",
	"cloud.google.com/go/cloudtasks", "github.com/scattermap"}

// TestPackages checks that packages that decide are apart from packages that act. Each package
// imports only earlier ones. The deciding packages have neither a clock nor a client.
func TestPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`,
		"./internal/...").CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	const below = "github.com/scattermap/scattermap/mapper/internal/"
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != len(rooms) {
		t.Errorf("%d packages, want %q", len(lines), rooms)
	}
	for _, line := range lines {
		path, imports, _ := strings.Cut(line, " ")
		at := slices.Index(rooms, strings.TrimPrefix(path, below))
		if at < 0 {
			t.Errorf("%s is not among %q", path, rooms)
			continue
		}
		for imported := range strings.FieldsSeq(imports) {
			room, inside := strings.CutPrefix(imported, below)
			if inside && slices.Contains(rooms[:at], room) {
				continue
			}
			if !inside && slices.Contains(callers, rooms[at]) {
				continue
			}
			if slices.Contains(notions, imported) {
				continue
			}
			if rooms[at] == "fault" && (imported == "google.golang.org/grpc/codes" ||
				imported == "google.golang.org/grpc/status") {
				continue // errors
			}
			if rooms[at] == "estimate" && imported == "github.com/scattermap/scattermap/billing" {
				continue // prices
			}
			if imported == "github.com/scattermap/scattermap/internal/pbvalue" ||
				imported == "github.com/scattermap/scattermap/internal/pbkey" {
				continue // forms of values
			}
			if rooms[at] == "estimate" && imported == "math/rand/v2" {
				continue // of a fixed seed
			}
			if slices.ContainsFunc(clients, func(c string) bool {
				return imported == c || strings.HasPrefix(imported, c+"/") || strings.HasPrefix(imported, c+"-")
			}) || strings.HasPrefix(imported, "github.com/scattermap") {
				t.Errorf("%s imports %s", path, imported)
			}
		}
		files, err := filepath.Glob(filepath.Join("internal", rooms[at], "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") && !slices.Contains(callers, rooms[at]) {
				decides(t, file)
			}
		}
	}
}

// decides checks that a file uses neither a clock nor a client.
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
			if p, ok := s.X.(*ast.Ident); ok && slices.Contains(acting[imported[p.Name]], s.Sel.Name) {
				t.Errorf("%s uses %s.%s", file, p.Name, s.Sel.Name)
			}
		}
		return true
	})
}
