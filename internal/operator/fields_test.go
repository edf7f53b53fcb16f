package operator_test

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/setting"
	_ "github.com/scattermap/scattermap/internal/testflag"
)

// TestInJSON checks that error texts have the JSON names of settings, and are otherwise unchanged.
func TestInJSON(t *testing.T) {
	t.Parallel()
	errBad := errors.New("bad")
	for want, err := range map[string]error{
		`bad: "page_size" has to be in [1, 1000]`: setting.Errorf("%w: StartOptions.PageSize has to be in [1, 1000]",
			errBad),
		`x: "rate.entities", "per_entity_ns" and "expire_ns"`: fmt.Errorf("x: %w", setting.Errorf("%s, "+
			"PlanOptions.TimePerEntity and CleanUpOptions.ExpireAfter",
			setting.Name("StartOptions.Rate.EntitiesPerSecond"))),
		`"retain_ns" is -1`:                     setting.Errorf("StartOptions.Retain is RetainAlways"),
		`"kind" "Query.Kind" of StartOptions.X`: setting.Errorf("Query.Kind %q of StartOptions.X", "Query.Kind"),
	} {
		got, parts := operator.InJSON(err)
		if got != want || len(parts)%2 != 1 {
			t.Errorf("%q becomes %q in %q, want %q", err, got, parts, want)
		}
	}
	got, parts := operator.InJSON(setting.Errorf("Query.Kind %q and Query.Start: %s", "a", "kind"))
	if want := []string{"", "kind", ` "a" and `, "start", ": kind"}; !reflect.DeepEqual(parts, want) {
		t.Errorf("%q has the parts %q, want %q", got, parts, want)
	}
	if got, parts := operator.InJSON(setting.Errorf("Query.Kind %s", "\x00id\x00")); len(parts) != 1 ||
		got != `"kind" "id"` {
		t.Errorf("a mark in a name: %q, %q", got, parts)
	}
}

// namesNothing has the settings that requests can't have, so that they have no JSON name. Only Go
// programs see errors about them.
var namesNothing = map[string]bool{"StartOptions.Hold": true,
	"VerifyOptions.ReadTime": true, "VerifyOptions.Entities": true}

// TestSettingsAreNamed checks that the library makes all errors about settings by setting.Errorf,
// so that the API, the command line and the dashboard can replace the names. It also checks that
// these settings have JSON names.
func TestSettingsAreNamed(t *testing.T) {
	t.Parallel()
	found := 0
	for _, dir := range []string{"mapper", "export", "prebuilt"} {
		err := filepath.WalkDir(filepath.Join("..", "..", dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, text, 0)
			if err != nil {
				return err
			}
			named := namesIn(file)
			ast.Inspect(file, func(n ast.Node) bool {
				lit, ok := n.(*ast.BasicLit)
				if !ok || lit.Kind != token.STRING {
					return true
				}
				text, _ := strconv.Unquote(lit.Value) // succeeds, because the literal was parsed
				for _, name := range setting.Find(text) {
					found++
					if !named[lit] {
						t.Errorf("%s: %q names %s, and is not the format of setting.Errorf", set.Position(lit.Pos()),
							text,
							name)
					}
					if operator.JSONName(setting.Name(name)) == "" && !namesNothing[name] {
						t.Errorf("%s: no request has a name for %s", set.Position(lit.Pos()), name)
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if found < 80 {
		t.Errorf("only %d settings are named", found)
	}
}

// namesIn returns the literals that may name settings: the formats of setting.Errorf, and the
// literals of type setting.Name.
func namesIn(file *ast.File) map[*ast.BasicLit]bool {
	named := make(map[*ast.BasicLit]bool)
	all := func(n ast.Node) {
		ast.Inspect(n, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok {
				named[lit] = true
			}
			return true
		})
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			f, ok := n.Fun.(*ast.SelectorExpr)
			if ok && (f.Sel.Name == "Validate" || f.Sel.Name == "validate") && len(n.Args) > 0 {
				all(n.Args[0]) // a conversion to setting.Name
			}
			if id, plain := n.Fun.(*ast.Ident); plain && len(n.Args) > 0 &&
				(id.Name == "checkRetain" || id.Name == "fail") {
				all(n.Args[0])
			}
			if x, plain := selected(f, ok); plain && x.Name == "setting" && len(n.Args) > 0 {
				all(n.Args[0])
			}
		case *ast.CompositeLit:
			if list, ok := n.Type.(*ast.ArrayType); ok {
				if f, ok := list.Elt.(*ast.SelectorExpr); ok && f.Sel.Name == "Name" {
					all(n)
				}
			}
		}
		return true
	})
	return named
}

func selected(f *ast.SelectorExpr, ok bool) (*ast.Ident, bool) {
	if !ok {
		return nil, false
	}
	x, plain := f.X.(*ast.Ident)
	return x, plain
}
