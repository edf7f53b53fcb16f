// Command arrows shows whether a package can be read from top to bottom. It lists which files of
// the package use which others. A reference points upwards if a file uses something from an earlier
// file. Command arrows finds the order of files with the fewest such references, and prints their
// number. If it is 0, the package can be read in this order.
//
//	go run ./internal/arrows ./mapper/internal/executor
//
// It counts references to functions, methods, variables and constants. References to types do not
// count, because the methods of one type may be in several files.
package main

import (
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"math/bits"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: arrows FOLDER")
		os.Exit(2)
	}
	if err := run(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(folder string) error {
	names, uses, err := read(folder)
	if err != nil {
		return err
	}
	order, upwards := best(uses)
	all := 0
	place := make([]int, len(order))
	for i, f := range order {
		place[f] = i
	}
	for _, f := range order {
		fmt.Printf("%s\n", names[f])
		for to := range names {
			what := uses[f][to]
			if len(what) == 0 {
				continue
			}
			all++
			arrow := "  "
			if place[to] < place[f] {
				arrow = "^ "
			}
			fmt.Printf("    %s%-16s %s\n", arrow, names[to], strings.Join(what, ", "))
		}
	}
	fmt.Printf("%d files, %d references between them, %d of them upwards (^)\n", len(names), all, upwards)
	return nil
}

// read returns the names of a package's files, without its tests. For each pair of files it also
// returns the names that the first one uses from the second.
func read(folder string) (names []string, uses [][][]string, err error) {
	set := token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, nil, err
	}
	number := make(map[string]int)
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || filepath.Base(path) == "doc.go" {
			continue
		}
		f, err := parser.ParseFile(set, path, nil, 0)
		if err != nil {
			return nil, nil, err
		}
		number[path] = len(names)
		names, files = append(names, filepath.Base(path)), append(files, f)
	}
	if len(files) == 0 || len(files) > 20 {
		return nil, nil, fmt.Errorf("%s has %d files, want 1 to 20: all of their orders are tried", folder, len(files))
	}
	uses = make([][][]string, len(names))
	for i := range uses {
		uses[i] = make([][]string, len(names))
	}
	info := &types.Info{Uses: make(map[*ast.Ident]types.Object)}
	compiled, err := exports(folder)
	if err != nil {
		return nil, nil, err
	}
	config := types.Config{Importer: importer.ForCompiler(set, "gc", func(path string) (io.ReadCloser, error) {
		return os.Open(compiled[path])
	})}
	pkg, err := config.Check(folder, set, files, info)
	if err != nil {
		return nil, nil, err
	}
	seen := make(map[string]bool)
	for id, object := range info.Uses {
		from := number[set.Position(id.Pos()).Filename]
		to, ok := number[set.Position(object.Pos()).Filename]
		if object.Pkg() != pkg || !ok || from == to || !counts(object, pkg) {
			continue
		}
		if key := fmt.Sprint(from, " ", to, " ", object.Name()); !seen[key] {
			seen[key] = true
			uses[from][to] = append(uses[from][to], object.Name())
		}
	}
	return names, uses, nil
}

// exports returns the compiler's export files of a package's imports, by import path. They have the
// types of the imported packages.
func exports(folder string) (map[string]string, error) {
	list := exec.Command("go", "list", "-export", "-deps", "-f", "{{.ImportPath}} {{.Export}}", ".")
	list.Dir, list.Stderr = folder, os.Stderr
	out, err := list.Output()
	if err != nil {
		return nil, fmt.Errorf("go list %s: %w", folder, err)
	}
	all := make(map[string]string)
	for line := range strings.Lines(string(out)) {
		path, file, _ := strings.Cut(strings.TrimSpace(line), " ")
		all[path] = file
	}
	return all, nil
}

// counts reports whether a reference to an object counts: to a function, a method, or a variable or
// constant of the package itself.
func counts(object types.Object, pkg *types.Package) bool {
	switch object.(type) {
	case *types.Func:
		return true
	case *types.Var, *types.Const:
		return object.Parent() == pkg.Scope()
	}
	return false
}

// best returns the order of files with the fewest upward references, and the number of these. It
// tries all sets of files for the top.
func best(uses [][][]string) (order []int, upwards int) {
	n := len(uses)
	// The cost of file f is the number of files above it that it uses: these references point
	// upwards.
	costs := func(f int, above uint32) (c int) {
		for to := range n {
			if above&(1<<to) != 0 && len(uses[f][to]) > 0 {
				c++
			}
		}
		return c
	}
	least, last := make([]int, 1<<n), make([]int, 1<<n)
	for set := uint32(1); set < 1<<n; set++ {
		least[set] = -1
		for rest := set; rest != 0; rest &= rest - 1 {
			f := bits.TrailingZeros32(rest)
			above := set &^ (1 << f)
			if c := least[above] + costs(f, above); least[set] < 0 || c < least[set] {
				least[set], last[set] = c, f
			}
		}
	}
	for set := uint32(1<<n - 1); set != 0; set &^= 1 << last[set] {
		order = append([]int{last[set]}, order...)
	}
	return order, least[1<<n-1]
}
