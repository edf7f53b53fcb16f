package mapper_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rooms are the packages below mapper/internal, in their order: each imports only those before it.
var rooms = []string{"keyspace", "fault", "recent", "pace", "property", "tally", "split", "record", "query", "progress", "splitsim", "gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey", "planner", "forecast", "page", "proof", "telemetry", "journal", "lifecycle", "executor"}

// callers are those of them that act: they call the database. The others decide.
var callers = []string{"gate", "body", "wire", "function", "bridge", "source", "store", "undo", "survey", "planner", "forecast", "page", "proof", "telemetry", "journal", "lifecycle", "executor"}

// acting are the names that decide nothing: who uses one of them has a clock or a client.
var acting = map[string][]string{
	"time":                          {"Now", "Since", "Until", "Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"},
	"cloud.google.com/go/datastore": {"Client", "NewClient", "NewClientWithDatabase", "Transaction", "Iterator", "NewTransaction"},
}

// notions are packages outside that everything may use: they have neither a clock nor a client.
var notions = []string{"github.com/scattermap/scattermap/internal/names",
	"github.com/scattermap/scattermap/internal/value",
	"github.com/scattermap/scattermap/internal/strictjson"}

// clients are packages that a package which decides does not import.
var clients = []string{"net", "os", "math/rand", "google.golang.org/api", "google.golang.org/grpc", "cloud.google.com/go/cloudtasks", "github.com/scattermap"}

// TestPackages checks that what decides is apart from what acts: each of its packages imports only
// those before it, and none has a clock or a client.
func TestPackages(t *testing.T) {
	out, err := exec.Command("go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, "./internal/...").CombinedOutput()
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
		for _, imported := range strings.Fields(imports) {
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
			if rooms[at] == "fault" && (imported == "google.golang.org/grpc/codes" || imported == "google.golang.org/grpc/status") {
				continue // errors
			}
			if rooms[at] == "progress" && imported == "github.com/scattermap/scattermap/billing" {
				continue // prices
			}
			if imported == "github.com/scattermap/scattermap/internal/pbvalue" || imported == "github.com/scattermap/scattermap/internal/pbkey" {
				continue // forms of values
			}
			if rooms[at] == "splitsim" && imported == "math/rand/v2" {
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

// decides checks that a file uses no clock and no client.
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

// The bounds within which a package of mapper can be found one's way in.
const (
	maxFileLines   = 400
	maxMethods     = 30 // of a type,
	maxMethodFiles = 3  // in so many files
)

// TestRooms checks that no package has grown into a flat room again, in which everything is in reach of
// everything.
func TestRooms(t *testing.T) {
	files, err := filepath.Glob("internal/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, more := range []string{"*.go", "mappertest/*.go"} {
		found, err := filepath.Glob(more)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	packages := make(map[string]bool)
	methods := make(map[string]map[string][]string) // by package and type: their files, one for each
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n, pkg := strings.Count(string(source), "\n"), filepath.Dir(file)
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		if packages[pkg] = true; n > maxFileLines {
			t.Errorf("%s has %d lines, above %d", file, n, maxFileLines)
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, source, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv != nil {
				name := receiver(fn.Recv.List[0].Type)
				if methods[pkg] == nil {
					methods[pkg] = make(map[string][]string)
				}
				methods[pkg][name] = append(methods[pkg][name], file)
			}
		}
	}
	if len(packages) < 20 {
		t.Fatalf("%d packages", len(packages))
	}
	for pkg := range packages {
		for name, in := range methods[pkg] {
			n := len(in)
			if in = slices.Compact(slices.Sorted(slices.Values(in))); n > maxMethods || len(in) > maxMethodFiles {
				t.Errorf("%s.%s has %d methods, in %q; above %d, or in more than %d files", pkg, name, n, in, maxMethods, maxMethodFiles)
			}
		}
	}
}

// receiver returns the name of the type that a method is of.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}
