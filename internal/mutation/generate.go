package mutation

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/printer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

const module = "github.com/scattermap/scattermap"

// A Target is a package whose code is mutated, or some files of a package.
type Target struct {
	Name  string   // the target's name in the table of results, and in the names of mutants
	Dir   string   // the package's folder below the module's root
	Files []string // the names of the files; if empty, all files except tests
}

// Targets has the packages and files on which scattermap's promises rest.
var Targets = []Target{
	{Name: "lifecycle", Dir: "mapper/internal/lifecycle"},
	{Name: "record", Dir: "mapper/internal/record"},
	{Name: "ledger", Dir: "mapper/internal/ledger"},
	{Name: "undolog", Dir: "mapper/internal/undolog"},
	{Name: "undo", Dir: "mapper/internal/undo"},
	{Name: "store", Dir: "mapper/internal/store"},
	{Name: "executor", Dir: "mapper/internal/executor"},
	{Name: "export", Dir: "export"},
	{Name: "schedule", Dir: "mapper", Files: []string{"schedule.go"}},
	{Name: "wire", Dir: "mapper/internal/wire"},
	{Name: "gate", Dir: "mapper/internal/gate"},
	{Name: "page", Dir: "mapper/internal/page"},
	{Name: "pace", Dir: "mapper/internal/pace"},
}

// A Mutant is one fault: a change of one condition or one statement.
type Mutant struct {
	ID     int    // the number that turns the mutant on
	Target string // the target's name
	Func   string // the changed function, with its receiver
	Op     string // the kind of change, such as "never"
	Text   string // the changed code, on one line
	N      int    // the number of this mutant among those with the same text in the function, from 1
	Place  string // the file and the line, for people

	Group string // a name shared by all mutants of the same expression
}

// Name returns the mutant's name. It is unique, and does not change when lines move.
func (m Mutant) Name() string {
	name := fmt.Sprintf("%s.%s: %s: %s", m.Target, m.Func, m.Op, m.Text)
	if m.N > 1 {
		name += fmt.Sprintf(" #%d", m.N)
	}
	return name
}

// Generate makes the mutants of the targets. It returns the mutants, and the changed files by path.
// A changed file contains all of its mutants.
func Generate(root string, targets []Target) ([]Mutant, map[string][]byte, error) {
	exports, err := exportData(root, targets)
	if err != nil {
		return nil, nil, err
	}
	g := &generator{files: make(map[string][]byte), fset: token.NewFileSet(), count: make(map[string]int)}
	g.imports = importer.ForCompiler(g.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no export data of %s", path)
		}
		return os.Open(exports[path])
	})
	for _, t := range targets {
		if err := g.target(root, t); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", t.Dir, err)
		}
	}
	return g.mutants, g.files, nil
}

// exportData returns the compiler's export files for all packages that the targets import, by
// import path. They have the types of these packages.
func exportData(root string, targets []Target) (map[string]string, error) {
	args := []string{"list", "-export", "-deps", "-f", "{{.ImportPath}}\t{{.Export}}"}
	for _, t := range targets {
		args = append(args, "./"+t.Dir)
	}
	list := exec.Command("go", args...)
	list.Dir, list.Stderr = root, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w", err)
	}
	exports := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		if pkg, file, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok {
			exports[pkg] = file
		}
	}
	return exports, nil
}

// A generator makes the mutants of all targets. It works on one file after the other.
type generator struct {
	fset    *token.FileSet
	imports types.Importer
	mutants []Mutant
	files   map[string][]byte
	count   map[string]int // the number of mutants with each name

	// name is the current target's name, and fn the current function's.
	name, fn string
	info     *types.Info
	source   []byte
	edits    []edit
}

// An edit replaces a part of a file's text.
type edit struct {
	from, to int
	text     string
	// closes says that the edit closes a call. If several edits are at the same place, the edits
	// that close calls come first. Among these, the innermost call comes first.
	closes bool
}

func (g *generator) target(root string, t Target) error {
	dir := filepath.Join(root, t.Dir)
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		return err
	}
	var files []*ast.File
	var names []string
	for _, p := range paths {
		if strings.HasSuffix(p, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(g.fset, p, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		files, names = append(files, f), append(names, p)
	}
	g.info = &types.Info{
		Types: make(map[ast.Expr]types.TypeAndValue), Uses: make(map[*ast.Ident]types.Object),
	}
	config := types.Config{Importer: g.imports}
	if _, err := config.Check(path.Join(module, t.Dir), g.fset, files, g.info); err != nil {
		return err
	}
	g.name = t.Name
	for i, f := range files {
		if len(t.Files) > 0 && !slices.Contains(t.Files, filepath.Base(names[i])) {
			continue
		}
		if err := g.file(names[i], f); err != nil {
			return err
		}
	}
	return nil
}

func (g *generator) file(name string, f *ast.File) (err error) {
	if g.source, err = os.ReadFile(name); err != nil {
		return err
	}
	g.edits = nil
	for _, d := range f.Decls {
		d, ok := d.(*ast.FuncDecl)
		if !ok || d.Body == nil {
			continue
		}
		g.fn = funcName(d)
		g.block(d.Body)
	}
	if len(g.edits) == 0 {
		return nil
	}
	g.edit(f.Name.End(), f.Name.End(), `; import mutant "`+module+`/internal/mutation/mutant"`, false)
	g.files[name] = g.apply()
	return nil
}

// funcName returns the name of a function or method. A method's name starts with the type of its
// receiver.
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil || len(d.Recv.List) == 0 {
		return d.Name.Name
	}
	of := d.Recv.List[0].Type
	for {
		switch t := of.(type) {
		case *ast.StarExpr:
			of = t.X
			continue
		case *ast.IndexExpr:
			of = t.X
			continue
		case *ast.IndexListExpr:
			of = t.X
			continue
		case *ast.Ident:
			return t.Name + "." + d.Name.Name
		}
		return d.Name.Name
	}
}

// add adds a mutant of the code at the node at, and returns the mutant's number. The argument op is
// the kind of change. Mutants of the same expression have the same group.
func (g *generator) add(op string, at ast.Node, group token.Pos) int {
	pos := g.fset.Position(at.Pos())
	m := Mutant{
		ID: len(g.mutants), Target: g.name, Func: g.fn, Op: op, Text: g.text(at), N: 1,
		Place: fmt.Sprintf("%s:%d", filepath.Base(pos.Filename), pos.Line),
		Group: fmt.Sprintf("%s:%d", pos.Filename, group),
	}
	g.count[m.Name()]++
	m.N = g.count[m.Name()]
	g.mutants = append(g.mutants, m)
	return m.ID
}

// longest is the maximum length of the code in a mutant's name, in characters.
const longest = 100

// text returns the source of a node on one line, cut off if it is long.
func (g *generator) text(n ast.Node) string {
	var b bytes.Buffer
	if err := (&printer.Config{Mode: printer.RawFormat}).Fprint(&b, g.fset, n); err != nil {
		return fmt.Sprintf("%T", n)
	}
	text := []rune(strings.Join(strings.Fields(b.String()), " "))
	if len(text) > longest {
		return string(text[:longest]) + "…"
	}
	return string(text)
}

func (g *generator) edit(from, to token.Pos, text string, closes bool) {
	g.edits = append(g.edits, edit{g.fset.Position(from).Offset, g.fset.Position(to).Offset, text, closes})
}

// wrap replaces a node by a call whose last argument is the node. The format call is the text of
// the call before this argument. Its verbs get the numbers of the mutants, ids.
func (g *generator) wrap(n ast.Node, call string, ids ...any) {
	g.edit(n.Pos(), n.Pos(), fmt.Sprintf(call, ids...), false)
	g.edit(n.End(), n.End(), ")", true)
}

// apply returns the text of the current file after all edits.
func (g *generator) apply() []byte {
	// Outer nodes were added before inner ones, so their calls open first and close last.
	n := len(g.edits)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int {
		a, b := g.edits[i], g.edits[j]
		switch {
		case a.from != b.from:
			return a.from - b.from
		case a.closes != b.closes:
			return map[bool]int{true: -1, false: 1}[a.closes]
		case a.closes:
			return cmp.Compare(j, i)
		}
		return cmp.Compare(i, j)
	})
	var b bytes.Buffer
	at := 0
	for _, i := range order {
		e := g.edits[i]
		b.Write(g.source[at:e.from])
		b.WriteString(e.text)
		at = e.to
	}
	b.Write(g.source[at:])
	return b.Bytes()
}

// block makes the mutants of all statements, conditions and comparisons inside a node.
func (g *generator) block(n ast.Node) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.BlockStmt:
			g.statements(n.List)
		case *ast.CaseClause:
			g.statements(n.Body)
		case *ast.CommClause:
			g.statements(n.Body)
		case *ast.IfStmt:
			if !g.onlyLogs(n) {
				g.step(n.Init)
				g.condition(n.Cond, true, n.Cond.Pos())
			}
		case *ast.ForStmt:
			if n.Cond != nil {
				g.condition(n.Cond, false, n.Cond.Pos())
			}
		case *ast.SwitchStmt:
			g.cases(n)
		case *ast.ReturnStmt:
			for _, r := range n.Results {
				g.result(r)
			}
		case *ast.AssignStmt:
			for _, r := range n.Rhs {
				g.result(r)
			}
		case *ast.CallExpr:
			for _, a := range n.Args {
				g.decision(a)
			}
		case *ast.KeyValueExpr:
			g.decision(n.Value)
		case *ast.BinaryExpr:
			g.comparison(n)
		}
		return true
	})
}

// statements makes a mutant of each statement in a list that has an effect. The mutant skips this
// statement.
func (g *generator) statements(list []ast.Stmt) {
	for _, s := range list {
		skipped := false
		switch s := s.(type) {
		case *ast.IncDecStmt:
			skipped = isField(s.X)
		case *ast.AssignStmt:
			skipped = s.Tok != token.DEFINE && !slices.ContainsFunc(s.Lhs, func(e ast.Expr) bool { return !isField(e) })
			if !skipped && s.Tok == token.ASSIGN {
				g.step(s)
			}
		case *ast.ExprStmt:
			call, ok := s.X.(*ast.CallExpr)
			skipped = ok && g.matters(call)
		case *ast.DeferStmt:
			skipped = g.matters(s.Call)
		}
		if skipped {
			id := g.add("skipped", s, s.Pos())
			g.edit(s.Pos(), s.Pos(), fmt.Sprintf("if mutant.Do(%d) { ", id), false)
			g.edit(s.End(), s.End(), " }", true)
		}
	}
}

// isField reports whether an expression is a field, an element, or what a pointer points to. Other
// code can see an assignment to it.
func isField(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.SelectorExpr, *ast.IndexExpr, *ast.StarExpr:
		return true
	case *ast.ParenExpr:
		return isField(e.X)
	}
	return false
}

// The packages and functions whose calls get no mutants, because they decide nothing. They log,
// measure, or free memory and locks.
var (
	neutralPackages = []string{
		"fmt", "log/slog", "sync", "hash", "strings", "bytes", "io",
		module + "/mapper/internal/observe",
	}
	neutralNames = []string{"Close", "Unlock", "RUnlock", "Stop", "cancel", "stop", "panic", "clear", "Recovered"}
)

// matters reports whether a call can influence what a job does.
func (g *generator) matters(call *ast.CallExpr) bool {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	default:
		return false
	}
	o := g.info.Uses[id]
	if o == nil || slices.Contains(neutralNames, id.Name) {
		return false
	}
	return o.Pkg() == nil || !slices.Contains(neutralPackages, o.Pkg().Path())
}

// onlyLogs reports whether an if statement decides only about log lines.
func (g *generator) onlyLogs(n *ast.IfStmt) bool {
	if n.Else != nil || len(n.Body.List) == 0 {
		return false
	}
	for _, s := range n.Body.List {
		e, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := e.X.(*ast.CallExpr)
		if !ok || g.matters(call) {
			return false
		}
	}
	return true
}

// step makes a mutant of a statement that only assigns a call's error, such as err = f(). The
// mutant skips the call, as if it had succeeded.
func (g *generator) step(s ast.Stmt) {
	if s, ok := s.(*ast.AssignStmt); ok && len(s.Lhs) == 1 && len(s.Rhs) == 1 {
		g.call(s.Rhs[0])
	}
}

func (g *generator) call(e ast.Expr) {
	call, ok := e.(*ast.CallExpr)
	if !ok || !g.matters(call) || g.constructsError(call) {
		return
	}
	if t := g.info.Types[e].Type; t == nil || t.String() != "error" {
		return
	}
	id := g.add("not called", e, e.Pos())
	g.edit(e.Pos(), e.Pos(), fmt.Sprintf("mutant.Step(%d, func() error { return ", id), false)
	g.edit(e.End(), e.End(), " })", true)
}

// constructsError reports whether a call only makes an error. Such a call gets no mutant, because
// an earlier condition has decided that there is an error.
func (g *generator) constructsError(call *ast.CallExpr) bool {
	var id *ast.Ident
	switch f := ast.Unparen(call.Fun).(type) {
	case *ast.Ident:
		id = f
	case *ast.SelectorExpr:
		id = f.Sel
	}
	o := g.info.Uses[id]
	if o == nil || o.Pkg() == nil {
		return true // another conversion, such as error(x)
	}
	p := o.Pkg().Path()
	return p == "errors" || p == "context" || strings.HasSuffix(p, "/fault")
}

// result makes mutants of an expression that is returned or assigned, if the expression is a
// condition.
func (g *generator) result(e ast.Expr) {
	switch x := ast.Unparen(e).(type) {
	case *ast.BinaryExpr:
		if x.Op != token.LAND && x.Op != token.LOR && g.isBool(x) {
			id := g.add("negated", x, e.Pos())
			g.wrap(e, "mutant.Not(%d, ", id)
			return
		}
	}
	g.decision(e)
}

// decision makes mutants of a condition with && or || that is used as a value. Each mutant leaves
// out one operand.
func (g *generator) decision(e ast.Expr) {
	if x, ok := ast.Unparen(e).(*ast.BinaryExpr); ok && (x.Op == token.LAND || x.Op == token.LOR) && g.isBool(x) {
		g.operands(x, e.Pos())
	}
}

// condition makes the mutants of a condition. One negates it, and each of the others leaves out one
// operand. If the condition has only one operand and the parameter never is set, there is also a
// mutant in which the condition is never true.
func (g *generator) condition(e ast.Expr, never bool, group token.Pos) {
	if !g.isBool(e) {
		return
	}
	g.wrap(e, "mutant.Not(%d, ", g.add("negated", e, group))
	if g.operands(e, group) == 0 && never {
		g.wrap(e, "mutant.Never(%d, ", g.add("never", e, group))
	}
}

// operands makes mutants of a condition with && or ||. Each leaves out one operand. It returns the
// number of mutants.
func (g *generator) operands(e ast.Expr, group token.Pos) (n int) {
	switch x := e.(type) {
	case *ast.ParenExpr:
		return g.operands(x.X, group)
	case *ast.UnaryExpr:
		if x.Op == token.NOT {
			return g.operands(x.X, group)
		}
	case *ast.BinaryExpr:
		if x.Op != token.LAND && x.Op != token.LOR {
			return 0
		}
		for _, o := range []ast.Expr{x.X, x.Y} {
			if y, ok := ast.Unparen(o).(*ast.BinaryExpr); ok && y.Op == x.Op {
				n += g.operands(o, group)
				continue
			}
			call := "mutant.Always(%d, "
			if x.Op == token.LOR {
				call = "mutant.Never(%d, "
			}
			g.wrap(o, call, g.add("without", o, group))
			n += 1 + g.operands(o, group)
		}
	}
	return n
}

// cases makes two mutants of each case of a switch. With one the case is never taken, and with the
// other always.
func (g *generator) cases(s *ast.SwitchStmt) {
	for _, c := range s.Body.List {
		for _, e := range c.(*ast.CaseClause).List {
			if s.Tag != nil {
				g.value(s.Tag, e)
				continue
			}
			if !g.isBool(e) {
				continue
			}
			g.wrap(e, "mutant.Always(%d, ", g.add("always", e, e.Pos()))
			if g.operands(e, e.Pos()) == 0 {
				g.wrap(e, "mutant.Never(%d, ", g.add("never", e, e.Pos()))
			}
		}
	}
}

// value makes the mutants of the case e in a switch over tag.
func (g *generator) value(tag, e ast.Expr) {
	if !isPure(tag) {
		return
	}
	t := g.info.Types[tag].Type
	b, ok := t.Underlying().(*types.Basic)
	if !ok || b.Info()&(types.IsString|types.IsInteger) == 0 {
		return
	}
	if b, ok := g.info.Types[e].Type.(*types.Basic); ok && b.Info()&types.IsUntyped != 0 {
		return
	}
	call := "mutant.NoCase(%d, %s, "
	if b.Info()&types.IsInteger != 0 {
		call = "mutant.NoNumber(%d, %s, "
	}
	text := g.raw(tag)
	of := g.text(tag) + " is "
	g.wrap(e, call, g.named("never", of, e), text)
	g.wrap(e, "mutant.AnyCase(%d, %s, ", g.named("always", of, e), text)
}

// named does what add does, and puts a text before the code in the mutant's name.
func (g *generator) named(op, before string, e ast.Expr) int {
	id := g.add(op, e, e.Pos())
	m := &g.mutants[id]
	g.count[m.Name()]-- // add has counted the mutant under its name without the text
	m.N, m.Text = 1, before+m.Text
	g.count[m.Name()]++
	m.N = g.count[m.Name()]
	return id
}

func (g *generator) raw(n ast.Node) string {
	return string(g.source[g.fset.Position(n.Pos()).Offset:g.fset.Position(n.End()).Offset])
}

// isPure reports whether evaluating an expression twice has the same effect as once.
func isPure(e ast.Expr) bool {
	switch e := e.(type) {
	case *ast.Ident:
		return true
	case *ast.SelectorExpr:
		return isPure(e.X)
	case *ast.ParenExpr:
		return isPure(e.X)
	}
	return false
}

// comparison makes mutants of a comparison of ordered values. They change the comparison at its
// boundary: < becomes <=, for example. A mutant of == also accepts larger values, or smaller ones.
func (g *generator) comparison(x *ast.BinaryExpr) {
	if !g.isOrdered(x.X) || !g.isOrdered(x.Y) || g.info.Types[x].Value != nil {
		return
	}
	ops := map[token.Token][2]string{
		token.LSS: {"Less", "<="}, token.LEQ: {"AtMost", "<"}, token.GTR: {"More", ">="}, token.GEQ: {"AtLeast", ">"},
		token.NEQ: {"Unequal", "only <"}, token.EQL: {"Equal", "also >"},
	}
	op, ok := ops[x.Op]
	if !ok {
		return
	}
	equals := x.Op == token.NEQ || x.Op == token.EQL
	if equals && (!g.isVariable(x.X) || !g.isVariable(x.Y)) {
		return
	}
	if equals && (onlyGrows(x.X) || onlyGrows(x.Y)) {
		return // one mutant would behave like the original, and the other one like a condition that is never true
	}
	if !equals && (g.isString(x.X) || g.isString(x.Y)) {
		return
	}
	id := g.add(op[1], x, x.Pos())
	switch x.Op {
	case token.NEQ:
		g.add("only >", x, x.Pos())
	case token.EQL:
		g.add("also <", x, x.Pos())
	}
	g.wrap(x, "mutant."+op[0]+"(%d, ", id)
	g.edit(x.OpPos, x.OpPos+token.Pos(len(x.Op.String())), ",", false)
}

// onlyGrows reports whether an expression is a number that never decreases, such as a generation in
// a record.
func onlyGrows(e ast.Expr) bool {
	if b, ok := e.(*ast.BinaryExpr); ok {
		e = b.X
	}
	s, ok := e.(*ast.SelectorExpr)
	return ok && (s.Sel.Name == "Epoch" || s.Sel.Name == "Generation")
}

func (g *generator) isBool(e ast.Expr) bool {
	tv := g.info.Types[e]
	b, ok := tv.Type.(*types.Basic)
	return ok && b.Info()&types.IsBoolean != 0 && tv.Value == nil
}

func (g *generator) basic(e ast.Expr) types.BasicInfo {
	if b, ok := g.info.Types[e].Type.Underlying().(*types.Basic); ok {
		return b.Info()
	}
	return 0
}

func (g *generator) isOrdered(e ast.Expr) bool { return g.basic(e)&types.IsOrdered != 0 }
func (g *generator) isString(e ast.Expr) bool  { return g.basic(e)&types.IsString != 0 }

// isVariable reports whether an expression is a number, but no constant.
func (g *generator) isVariable(e ast.Expr) bool {
	return g.basic(e)&types.IsInteger != 0 && g.info.Types[e].Value == nil
}

// Overlay writes changed files to a folder. It returns the path of a file for the go command's flag
// -overlay. With this flag, the command uses the changed files in place of the module's.
func Overlay(files map[string][]byte, dir string) (string, error) {
	replace := make(map[string]string)
	for name, source := range files {
		to := filepath.Join(dir, fmt.Sprintf("%d_%s", len(replace), filepath.Base(name)))
		if err := os.WriteFile(to, source, 0o600); err != nil {
			return "", err
		}
		replace[name] = to
	}
	text, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "overlay.json")
	return file, os.WriteFile(file, text, 0o600)
}
