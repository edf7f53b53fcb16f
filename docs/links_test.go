package docs_test

import (
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode"
)

var (
	pageLink = regexp.MustCompile(`\]\(<?([^)\s>]+)>?(?: "[^"]*")?\)`)
	fenced   = regexp.MustCompile("(?ms)^ *```.*?^ *```")
	inline   = regexp.MustCompile("`[^`\n]*`")
	// mention matches the path of a page, as code, commands and other files name it.
	mention = regexp.MustCompile(`\bdocs/[\w-]+\.md(?:#[\w-]+)?`)
	// address matches the address of a file in this repository.
	address   = regexp.MustCompile(`github\.com/scattermap/scattermap/(?:blob|tree)/main/([\w./-]*\w(?:#[\w-]+)?)`)
	anchorTag = regexp.MustCompile(`<a (?:name|id)="([^"]+)"`)
)

// A linkChecker checks whether the targets of links exist.
type linkChecker struct {
	anchors map[string]map[string]bool // the anchors of each page, by its path
}

// check returns an error if the target of a link in a page does not exist. The target is a file or
// folder, an anchor in a page, or a line of a file. Paths start at the repository's root.
func (c linkChecker) check(page, link string) error {
	target, anchor, _ := strings.Cut(link, "#")
	if target == "" {
		target = page
	} else {
		target = path.Join(path.Dir(page), target)
	}
	file := filepath.Join("..", target)
	info, err := os.Stat(file)
	if err != nil {
		return fmt.Errorf("there is no %s", target)
	}
	if anchor == "" || info.IsDir() {
		return nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if !strings.HasSuffix(target, ".md") {
		n, err := strconv.Atoi(strings.TrimPrefix(anchor, "L"))
		if err != nil || n > strings.Count(string(content), "\n") {
			return fmt.Errorf("%s has no line %s", target, anchor)
		}
		return nil
	}
	if c.anchors[target] == nil {
		c.anchors[target] = anchorsOf(string(content))
	}
	if !c.anchors[target][anchor] {
		return fmt.Errorf("%s has no heading #%s", target, anchor)
	}
	return nil
}

// anchorsOf returns the anchors that GitHub makes for the headings of a page.
func anchorsOf(content string) map[string]bool {
	anchors := make(map[string]bool)
	for _, m := range anchorTag.FindAllStringSubmatch(content, -1) {
		anchors[m[1]] = true
	}
	seen := make(map[string]int)
	for line := range strings.Lines(fenced.ReplaceAllString(content, "")) {
		text := strings.TrimLeft(line, "#")
		if text == line || !strings.HasPrefix(text, " ") {
			continue
		}
		text = linkTarget.ReplaceAllString(text, "]")
		anchor := strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, strings.TrimSpace(text))
		if n := seen[anchor]; n > 0 {
			anchors[fmt.Sprintf("%s-%d", anchor, n)] = true
		}
		seen[anchor]++
		anchors[anchor] = true
	}
	return anchors
}

// TestLinks checks that each link in a page leads to an existing file, heading or line. It does not
// check links with a colon, which lead to other sites.
func TestLinks(t *testing.T) {
	c := linkChecker{make(map[string]map[string]bool)}
	links := 0
	for _, page := range filesWith(t, ".md") {
		content, err := os.ReadFile(filepath.Join("..", page))
		if err != nil {
			t.Fatal(err)
		}
		blank := func(text string) string { return strings.Repeat("\n", strings.Count(text, "\n")) }
		prose := fenced.ReplaceAllStringFunc(string(content), blank)
		for i, line := range strings.Split(prose, "\n") {
			for _, m := range pageLink.FindAllStringSubmatch(inline.ReplaceAllString(line, "code"), -1) {
				if strings.Contains(m[1], ":") {
					continue
				}
				links++
				if err := c.check(page, m[1]); err != nil {
					t.Errorf("%s:%d links to %s: %v", page, i+1, m[1], err)
				}
			}
		}
	}
	if links < 100 {
		t.Errorf("the pages have %d links", links)
	}
}

// TestMentions checks that the pages and headings which are named without a link exist. They are
// named in code, commands, configuration and pages. The changelog may also name removed pages.
func TestMentions(t *testing.T) {
	c := linkChecker{make(map[string]map[string]bool)}
	mentions := 0
	for _, file := range filesWith(t, ".go", ".md", ".tf", ".html", ".css", ".js", ".yaml", ".yml", ".sh", ".ci/run",
		".ci/nightly", ".ci/common", "Makefile") {
		if file == "CHANGELOG.md" || strings.HasPrefix(file, "docs/links_test") {
			continue
		}
		content, err := os.ReadFile(filepath.Join("..", file))
		if err != nil {
			t.Fatal(err)
		}
		text := string(content)
		check := func(at int, link string) {
			mentions++
			if err := c.check("README.md", link); err != nil {
				t.Errorf("%s:%d names %s: %v", file, 1+strings.Count(text[:at], "\n"), link, err)
			}
		}
		if strings.Contains(text, "docs/") {
			for _, at := range mention.FindAllStringIndex(text, -1) {
				check(at[0], text[at[0]:at[1]])
			}
		}
		if strings.Contains(text, "/main/") {
			for _, at := range address.FindAllStringSubmatchIndex(text, -1) {
				check(at[0], text[at[2]:at[3]])
			}
		}
	}
	if mentions < 20 {
		t.Errorf("%d mentions", mentions)
	}
}

// TestAnchors checks the anchors that anchorsOf returns, and that wrong links are found.
func TestAnchors(t *testing.T) {
	got := anchorsOf("# A b\n## `x.Y`: what it's for?\n## A b\n```\n# no\n```\n#no\n### [T](u#v) - é_1\n<a " +
		"name=\"here\">")
	for _, want := range []string{"a-b", "a-b-1", "xy-what-its-for", "t---é_1", "here"} {
		if !got[want] {
			t.Errorf("no %s in %v", want, got)
		}
	}
	if len(got) != 5 {
		t.Error(got)
	}
	c := linkChecker{make(map[string]map[string]bool)}
	for link, there := range map[string]bool{"queries.md": true, "../mapper": true, "#queries": true,
		"queries.md#values-of-filters": true, "links_test.go#L3": true, "none.md": false, "#none": false,
		"queries.md#none": false, "links_test.go#L9999": false} {
		if err := c.check("docs/queries.md", link); (err == nil) != there {
			t.Errorf("%s: %v, want that it is there: %v", link, err, there)
		}
	}
}
