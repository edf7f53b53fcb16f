package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"go/ast"
	"go/constant"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var write = flag.Bool("write", false, "write scattermap.txt")

const module = "github.com/scattermap/scattermap/"

// TestAPI checks that scattermap.txt lists the exported API of all public packages.
func TestAPI(t *testing.T) {
	packages, err := public()
	if err != nil {
		t.Fatal(err)
	}
	if len(packages) < 10 {
		t.Fatalf("%d public packages", len(packages))
	}
	lines := list(packages)
	if *write {
		if err := os.WriteFile("scattermap.txt", []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	content, err := os.ReadFile("scattermap.txt")
	if err != nil {
		t.Fatal(err)
	}
	if diff := difference(strings.Split(strings.TrimSpace(string(content)), "\n"), lines); diff != "" {
		t.Errorf("the exported API has changed (-before +now):\n%s\nIf it is meant to, write it into the file, and "+
			"into CHANGELOG.md: go test ./api -args -write", diff)
	}
}

// difference returns the lines that only one of two lists has, as a diff.
func difference(before, now []string) string {
	var diff strings.Builder
	for _, line := range before {
		if !slices.Contains(now, line) {
			fmt.Fprintf(&diff, "-%s\n", line)
		}
	}
	for _, line := range now {
		if !slices.Contains(before, line) {
			fmt.Fprintf(&diff, "+%s\n", line)
		}
	}
	if diff.Len() == 0 && !slices.Equal(before, now) {
		return "the same lines, in another order\n"
	}
	return diff.String()
}

// public returns the packages that users can import, read from the compiler's export data.
func public() ([]*types.Package, error) {
	c := exec.Command("go", "list", "-export", "-deps", "-json=ImportPath,Name,Export", "../...")
	c.Stderr = os.Stderr
	out, err := c.Output()
	if err != nil {
		return nil, err
	}
	exports, paths := make(map[string]string), []string(nil)
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Name, Export string }
		err := d.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		exports[p.ImportPath] = p.Export
		if strings.HasPrefix(p.ImportPath, module) && p.Name != "main" && p.Export != "" &&
			!slices.Contains(strings.Split(p.ImportPath, "/"), "internal") {
			paths = append(paths, p.ImportPath)
		}
	}
	slices.Sort(paths)
	from := importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(exports[path])
	})
	var all []*types.Package
	for _, path := range paths {
		p, err := from.Import(path)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	return all, nil
}

// list returns a line for each exported identifier of the packages.
func list(packages []*types.Package) []string {
	l := lister{aliases: make(map[string]string)}
	for _, p := range packages {
		for _, name := range p.Scope().Names() {
			if named := hidden(p.Scope().Lookup(name)); named != nil {
				l.aliases[types.TypeString(named.Origin(), l.qualify)] = p.Name() + "." + name
			}
		}
	}
	for _, p := range packages {
		l.in = p
		l.inside = regexp.MustCompile(`\b` + p.Name() + `\.([A-Z])`)
		for _, name := range p.Scope().Names() {
			if o := p.Scope().Lookup(name); o.Exported() {
				l.object(o)
			}
		}
	}
	slices.Sort(l.lines)
	return slices.Compact(l.lines)
}

// hidden returns the type that o is an alias of, if that type is in an internal package, where
// users can't look it up. Otherwise it returns nil. Its fields and methods are then listed as the
// alias's own.
func hidden(o types.Object) *types.Named {
	name, ok := o.(*types.TypeName)
	if !ok || !name.IsAlias() || !name.Exported() {
		return nil
	}
	named, ok := types.Unalias(name.Type()).(*types.Named)
	if !ok || named.Obj().Pkg() == nil || !strings.Contains(named.Obj().Pkg().Path(), "/internal/") {
		return nil
	}
	return named
}

// A lister makes the lines for the exported identifiers of packages.
type lister struct {
	in     *types.Package
	inside *regexp.Regexp // matches the names of types of the current package, with the package's name
	// the public name of each type in an internal package that has an alias, by the type's full
	// name
	aliases map[string]string
	lines   []string
}

var internal = regexp.MustCompile(`/[\w/]*internal/[\w/]+\.\w+`)

// qualify is a types.Qualifier: it returns the prefix for the names of a package's types. This is
// the package's name, the path of an internal package, or "" for the current package.
func (l *lister) qualify(p *types.Package) string {
	if path, ours := strings.CutPrefix(p.Path(), module); ours && strings.Contains(path, "internal/") {
		return "/" + path
	}
	if p == l.in {
		return ""
	}
	return p.Name()
}

// public replaces the names of types of internal packages in a text by their public aliases.
func (l *lister) public(text string) string {
	return internal.ReplaceAllStringFunc(text, func(name string) string {
		if alias, ok := l.aliases[name]; ok {
			return l.inside.ReplaceAllString(alias, "$1")
		}
		return strings.TrimPrefix(name, "/")
	})
}

func (l *lister) add(format string, args ...any) {
	line := "pkg " + strings.TrimPrefix(l.in.Path(), module) + ", " + fmt.Sprintf(format, args...)
	l.lines = append(l.lines, l.public(line))
}

func (l *lister) typeOf(t types.Type) string { return types.TypeString(t, l.qualify) }

func (l *lister) object(o types.Object) {
	switch o := o.(type) {
	case *types.Const:
		l.add("const %s %s = %s", o.Name(), l.typeOf(o.Type()), valueOf(o.Val()))
	case *types.Var:
		l.add("var %s %s", o.Name(), l.typeOf(o.Type()))
	case *types.Func:
		l.add("func %s%s", o.Name(), l.signature(o.Signature()))
	case *types.TypeName:
		l.typeName(o)
	}
}

// valueOf returns the whole value of a constant, at any length.
func valueOf(v constant.Value) string {
	if v.Kind() == constant.Float {
		return v.String()
	}
	return v.ExactString()
}

func (l *lister) signature(s *types.Signature) string {
	return strings.TrimPrefix(l.typeOf(s), "func")
}

// typeName lists a type with its exported fields and methods.
func (l *lister) typeName(o *types.TypeName) {
	name := o.Name()
	if o.IsAlias() && hidden(o) == nil { // the package of the aliased type lists its fields and methods
		l.add("type %s = %s", name, l.typeOf(types.Unalias(o.Type())))
		return
	}
	t := types.Unalias(o.Type())
	if named, ok := t.(*types.Named); ok && !o.IsAlias() {
		name += l.parameters(named.TypeParams())
	}
	switch u := t.Underlying().(type) {
	case *types.Struct:
		l.add("type %s struct", name)
		l.fields(o.Name(), u, make(map[string]bool))
	case *types.Interface:
		l.add("type %s interface", name)
		for m := range u.Methods() {
			if m.Exported() {
				l.add("type %s interface, %s%s", o.Name(), m.Name(), l.signature(m.Signature()))
			} else {
				l.add("type %s interface, unexported methods", o.Name())
			}
		}
		return
	default:
		l.add("type %s %s", name, l.typeOf(u))
	}
	values := types.NewMethodSet(t)
	for m := range types.NewMethodSet(types.NewPointer(t)).Methods() {
		if !m.Obj().Exported() {
			continue
		}
		receiver := "*" + o.Name()
		if values.Lookup(l.in, m.Obj().Name()) != nil {
			receiver = o.Name()
		}
		l.add("method (%s) %s%s", receiver, m.Obj().Name(), l.signature(m.Type().(*types.Signature)))
	}
}

// parameters returns the text of type parameters with their constraints, in brackets.
func (l *lister) parameters(all *types.TypeParamList) string {
	if all.Len() == 0 {
		return ""
	}
	var texts []string
	for p := range all.TypeParams() {
		texts = append(texts, p.Obj().Name()+" "+l.typeOf(p.Constraint()))
	}
	return "[" + strings.Join(texts, ", ") + "]"
}

// fields lists the exported fields of a struct, and of unexported structs embedded in it.
func (l *lister) fields(name string, s *types.Struct, seen map[string]bool) {
	for i := range s.NumFields() {
		f, tag := s.Field(i), s.Tag(i)
		if tag != "" {
			tag = " `" + tag + "`"
		}
		switch inner, ok := f.Type().Underlying().(*types.Struct); {
		case seen[f.Name()]: // an outer field hides it
		case f.Exported() && f.Embedded():
			l.add("type %s struct, embedded %s%s", name, l.typeOf(f.Type()), tag)
		case f.Exported():
			l.add("type %s struct, %s %s%s", name, f.Name(), l.typeOf(f.Type()), tag)
		case f.Embedded() && ok:
			outer := maps.Clone(seen)
			for field := range s.Fields() {
				outer[field.Name()] = true
			}
			l.fields(name, inner, outer)
		}
	}
}

// TestList checks the lines for each kind of exported identifier.
func TestList(t *testing.T) {
	const inner = `package inner
type Row[T any] struct { At T }
type Point struct { X, Y int; z int }
func (p *Point) Move(by Point) {}`
	const outer = `package outer
import "github.com/scattermap/scattermap/mapper/internal/inner"
import "io"
const ( A State = iota; B; c )
const Long = "` + "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa" + `"
type State int
func (s State) String() string { return "" }
func (s *State) set() {}
type Point = inner.Point
type base struct { ID int; Hidden bool }
func (b base) Base() {}
type Thing[T any] struct {
	base
	io.Reader
	Hidden string ` + "`json:\"hidden\"`" + `
	At *Point
	none int
}
func (t *Thing[T]) Do(x T, more ...inner.Point) (n int, err error) { return }
type Doer interface { Do(int) error; do() }
type Func func(Point) State
var Default = &Thing[int]{}
var unexported int
func New[T any](of map[string]T) *Thing[T] { return nil }
func init() {}`
	of := make(map[string]*types.Package)
	imports := importFunc(func(path string) (*types.Package, error) {
		if p := of[path]; p != nil {
			return p, nil
		}
		return importer.ForCompiler(token.NewFileSet(), "source", nil).Import(path)
	})
	for path, source := range map[string]string{"mapper/internal/inner": inner} {
		of[module+path] = check(t, imports, module+path, source)
	}
	got := list([]*types.Package{check(t, imports, module+"outer", outer)})
	want := []string{
		"const A State = 0", "const B State = 1", `const Long untyped string = "` + strings.Repeat("a", 84) + `"`,
		"func New[T any](of map[string]T) *Thing[T]",
		"method (*Point) Move(by Point)",
		"method (*Thing) Do(x T, more ...Point) (n int, err error)",
		"method (State) String() string", "method (Thing) Base()", "method (Thing) Read(p []byte) (n int, err error)",
		"type Doer interface", "type Doer interface, Do(int) error", "type Doer interface, unexported methods",
		"type Func func(Point) State",
		"type Point struct", "type Point struct, X int",
		"type Point struct, Y int", "type State int",
		"type Thing struct, At *Point", "type Thing struct, Hidden string `json:\"hidden\"`",
		"type Thing struct, ID int",
		"type Thing struct, embedded io.Reader", "type Thing[T any] struct", "var Default *Thing[int]",
	}
	for i := range want {
		want[i] = "pkg outer, " + want[i]
	}
	if diff := difference(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

type importFunc func(path string) (*types.Package, error)

func (f importFunc) Import(path string) (*types.Package, error) { return f(path) }

// check type-checks a package of one file.
func check(t *testing.T, imports types.Importer, path, source string) *types.Package {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path+".go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	p, err := (&types.Config{Importer: imports}).Check(path, fset, []*ast.File{file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	return p
}
