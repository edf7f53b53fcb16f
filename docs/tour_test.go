package docs_test

import (
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var writeTour = flag.Bool("tour", false, "write the files and lines of TestTour's links into docs/tour.md")

// TestTour checks that each link in tour.md leads to the line that declares the name in the link's
// text.
func TestTour(t *testing.T) {
	content, err := os.ReadFile("tour.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	links := regexp.MustCompile("\\[`([\\w.]+)`\\]\\(([^)]*)\\)").FindAllStringSubmatch(page, -1)
	if len(links) < 30 {
		t.Fatalf("%d links", len(links))
	}
	for _, link := range links {
		path, _, _ := strings.Cut(link[2], "#L")
		source, err := os.ReadFile(path)
		if err != nil && !*writeTour {
			t.Errorf("%s: %v", link[1], err)
			continue
		}
		at := declaration(string(source), link[1])
		if at == 0 && *writeTour {
			path, at = find(t, link[1])
		}
		want := fmt.Sprintf("%s#L%d", path, at)
		switch {
		case at == 0:
			t.Errorf("tour.md links %s to %s, which does not declare it; go test ./docs -run TestTour -args -tour "+
				"looks for the file that does", link[1], link[2])
		case link[2] != want && !*writeTour:
			t.Errorf("tour.md links %s to %s, and the declaration is at %s; go test ./docs -run TestTour -args -tour "+
				"writes that", link[1], link[2], want)
		default:
			page = strings.ReplaceAll(page, link[0], fmt.Sprintf("[`%s`](%s)", link[1], want))
		}
	}
	if *writeTour {
		if err := os.WriteFile("tour.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// find returns the file and the line that declare a name of the library. It returns "" and 0 if
// there is none, or more than one.
func find(t *testing.T, name string) (file string, line int) {
	t.Helper()
	err := filepath.WalkDir("../mapper", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		at := declaration(string(source), name)
		switch {
		case at == 0:
		case file != "":
			t.Errorf("%s and %s declare %s", file, path, name)
		default:
			file, line = filepath.ToSlash(path), at
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return file, line
}

// declaration returns the line of a Go file that declares a name, or 0. The name has no qualifier,
// or is qualified by the file's package, or by the type that it is a method of.
func declaration(source, name string) (line int) {
	qualifier := ""
	if i := strings.LastIndex(name, "."); i >= 0 {
		qualifier, name = name[:i], name[i+1:]
	}
	declares := regexp.MustCompile(`(?m)^func \(\w+ \*?` + qualifier + `(\[[\w, ]+\])?\) ` + name + `\(`)
	if qualifier == "" || regexp.MustCompile(`(?m)^package `+qualifier+`$`).MatchString(source) {
		declares = regexp.MustCompile(`(?m)^(func|type) ` + name + `\b`)
	}
	at := declares.FindStringIndex(source)
	if at == nil {
		return 0
	}
	return 1 + strings.Count(source[:at[0]], "\n")
}

// TestDeclaration checks that declaration does not find a name with a wrong qualifier.
func TestDeclaration(t *testing.T) {
	const source = `package page

type Page struct{}

func (p *Page) Run() {}

func (o Outcome[T]) Run() {}

func Run() {}
`
	for name, want := range map[string]int{
		"Page": 3, "page.Page": 3, "Page.Run": 5, "Outcome.Run": 7, "Run": 9, "page.Run": 9,
		"record.Page": 0, "record.Run": 0, "Range.Run": 0, "Page.Ru": 0, "Ru": 0,
	} {
		if got := declaration(source, name); got != want {
			t.Errorf("%s: line %d, want %d", name, got, want)
		}
	}
}
