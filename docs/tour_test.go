package docs_test

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var writeTour = flag.Bool("tour", false, "write the lines of TestTour's links into docs/tour.md")

// TestTour checks that each link of the tour is to the line that declares what its text names.
func TestTour(t *testing.T) {
	content, err := os.ReadFile("tour.md")
	if err != nil {
		t.Fatal(err)
	}
	page := string(content)
	links := regexp.MustCompile("\\[`([\\w.]+)`\\]\\(([^)]*)\\)").FindAllStringSubmatch(string(content), -1)
	if len(links) < 30 {
		t.Fatalf("%d links", len(links))
	}
	for _, link := range links {
		path, line, _ := strings.Cut(link[2], "#L")
		source, err := os.ReadFile(path)
		if err != nil {
			t.Errorf("%s: %v", link[1], err)
			continue
		}
		lines := strings.Split(string(source), "\n")
		qualifier, name, _ := strings.Cut("."+link[1], ".")
		if i := strings.LastIndex(link[1], "."); i >= 0 {
			qualifier, name = link[1][:i], link[1][i+1:]
		}
		declares := regexp.MustCompile(`^(func|type) ` + name + `\b|^func \(\w+ \*?` + qualifier + `(\[\w+\])?\) ` +
			name + `\(`)
		at := 0
		for i, l := range lines {
			if declares.MatchString(l) {
				at = i + 1
				break
			}
		}
		if n, err := strconv.Atoi(line); err == nil && n == at {
			continue
		}
		if at == 0 || !*writeTour {
			t.Errorf("tour.md links %s to line %q of %s, which declares it on line %d; go test ./docs -run TestTour "+
				"-args -tour writes that", link[1], line, path, at)
			continue
		}
		page = strings.ReplaceAll(page, link[0], fmt.Sprintf("[`%s`](%s#L%d)", link[1], path, at))
	}
	if *writeTour {
		if err := os.WriteFile("tour.md", []byte(page), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
