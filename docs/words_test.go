package docs_test

import (
	"cmp"
	"flag"
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"
)

var (
	countWords = flag.Bool("count", false, "print how many sentences of each file TestWords finds, and fail for none")
	wordsIn    = flag.String("in", "", "the files and folders, separated by commas, in which TestWords fails for "+
		"what it finds, in place of the clean ones; . is everything")
)

// clean are the files and folders in which TestWords fails if it finds something, relative to the
// repository's root. "." means all.
var clean = []string{"."}

// Limits of a sentence, and of a paragraph of a page, in words. Code in backquotes is one word.
// mostFindings limits the findings that a test prints.
const (
	sentenceWords  = 30
	paragraphWords = 80
	mostFindings   = 500
)

// A wordRule finds words that make a text hard to read.
type wordRule struct {
	hints []string // a text that find matches contains at least one of these, in lower case; searching them is fast
	find  *regexp.Regexp
	but   *regexp.Regexp // allowed uses: a match of find inside a match of but is not a finding
	say   string         // what to write instead
}

// rule compiles a wordRule. Hints are separated by "|". If but is empty, the rule has no
// exceptions.
func rule(hints, find, but, say string) wordRule {
	r := wordRule{hints: strings.Split(hints, "|"), find: regexp.MustCompile(find), say: say}
	if but != "" {
		r.but = regexp.MustCompile(but)
	}
	return r
}

// wordRules are applied to sentences in lower case. Code in a sentence is replaced by "`·`".
var wordRules = []wordRule{
	rule(`behind`, `\bbehind\b`,
		`\b(?:fall|falls|fell|fallen|falling|lag|lags|lagged|lagging) (?:\S+ ){0,3}behind\b|`+
			`\bbehind (?:an? |the |its |your )?(?:\w+ )?(?:proxy|proxies|balancers?|firewall|iap|identity-aware|flag|`+
			`interface|api)\b`, `"after" (time, order)`),
	rule(`in vain`, `\bin vain\b`, ``, `"failed", "without effect"`),
	rule(` again`, `\b(?:so|as) (?:many|much|few) again\b`, ``, `the number: "by half", "twice"`),
	rule(`so many|so much|so few|so little`, `\bso (?:many|much|few|little)\b`,
		`\bso (?:many|much|few|little)(?: [^ .;:]+)* that\b|\bso much (?:as|for)\b`,
		`"up to n", "n", "this number of"`),
	rule(`ever`, `\bwho(?:m|so)?ever\b`, ``, `the actor: "the caller", "the operator", "the worker"`),
	rule(`whom|of which`, `\b(?:of|in|to|at|by|from|on|for|with|after|before|behind) whom\b|\bof which\b`, ``,
		`a sentence of its own, or "whose"`),
	rule(`that of|those of`, `\bthat of\b|\bthose of\b`,
		`\b(?:so|say|says|said|means|shows?|knows?|sees?) that of\b`, `the noun again, or 's`),
	rule(`as it |as they `, `\bas (?:it is|they are|it was|they were)\b`,
		`\bas (?:it is|they are|it was|they were) `+
			`(?:\w+(?:ed|en|ing)|found|read|kept|made|put|left|sent|set|cut|run)\b`,
		`"unchanged", "as stored"`),
	rule(`by itself|by themselves`, `\bby (?:itself|themselves)\b`, ``, `"alone", "automatically"`),
	rule(`for good`, `\bfor good\b`, `\bfor good (?:reasons?|measure)\b`, `"permanently"`),
	rule(`nothing`, `\b(?:has|have|had|having|with|is|are|be) nothing (?:left )?to do\b`,
		`\bnothing to do with\b|\b\w+ nothing to do with\b`, `"idle"`),
	rule(`beg`, `\b(?:begins?|began|begun|beginnings?)\b`,
		`\b(?:begins?|began|begun|beginning) (?:(?:an?|the|its|no|new|read-only|another|each) )*transactions?\b`,
		`"start"`),
	rule(`what `, `\bwhat (?:is|was|has been) left\b`, `\bwhat (?:is|was|has been) left (?:out|alone)\b`,
		`"the rest", "the remaining …"`),
	rule(`: wh|; wh`, `[:;] (?:what|who) \S+`,
		`[:;] (?:what|who) [^.;]*,(?: and)? (?:who|what|how|which|where|when|why)\b`,
		`the subject first: "failed entities are retried"`),
	rule(`ha`, `\b(?:has|have|had|having) (?:it|them) (?:\w+ed|\w+en|done|read|put|cut|sent|run|kept|made)\b`,
		`\b(?:has|have|had) (?:it|them) (?:been|then)\b`, `who does it: "the task deletes them"`),
	rule(` be `, `\b(?:has|have|had|having) (?:\S+ ){1,5}be \w+`,
		`\b(?:has|have|had|having) (?:\S+ )*(?:to|may|can|must|could|would|should|will|might|not|never|cannot|can't|`+
			`won't|shall|that|which) (?:\S+ )*be \w+`, `"makes", or who does it: "the task deletes them"`),
	rule(`where|there|here`, `\b(?:where(?:of|by|in|upon)|there(?:of|in|by|upon)|here(?:of|by|in|with))\b`, ``,
		`plain words`),
}

// startRules are applied to the start of sentences, in their original case.
var startRules = []wordRule{
	rule(`W`, `^(?:What|Who) [^?]*$`, `^What follows`,
		`the subject first: "failed entities are retried", not "what fails is retried"`),
	rule(`So `, `^So (?:is|are|was|were|do|does|did|has|have|it is with) `, ``,
		`the subject first, then "too" or "also"`),
}

// A prose is a paragraph, an item of a list or a cell of a table. It has no code blocks.
type prose struct {
	line    int
	text    string
	heading bool // the heading of a page, or of a table's column
	cell    bool
}

// A sentence is a sentence of a prose.
type sentence struct {
	line  int
	text  string // the original text
	plain string // the text with code replaced by "`·`"
	words int
}

// A finding is a place in a text that breaks a rule.
type finding struct {
	path string
	line int
	rule string
	text string
}

func (f finding) String() string {
	return fmt.Sprintf("%s:%d: %s\n\t%s", f.path, f.line, f.rule, f.text)
}

var (
	linkTarget  = regexp.MustCompile(`\]\([^)\n]*\)`)
	quotedWord  = regexp.MustCompile(`"[^" \n]+"`)
	emphasis    = regexp.MustCompile(`^[*_("'\[“‘]+|[*_)"'\]”’]+$`)
	abbreviated = regexp.MustCompile(`(?i)^[("]*(?:e\.g|i\.e|etc|vs|cf|approx|resp|no|p|ca)\.$`)
)

// sentences splits a prose into sentences.
func (p prose) sentences() (all []sentence) {
	text := linkTarget.ReplaceAllStringFunc(p.text, func(string) string { return "]" })
	current := sentence{}
	var spoken, plain []string
	end := func() {
		if current.text = strings.Join(spoken, " "); current.text != "" {
			current.plain = strings.Join(plain, " ")
			all = append(all, current)
		}
		current, spoken, plain = sentence{}, nil, nil
	}
	line := p.line
	for len(text) > 0 {
		word := wordOf(text)
		if word == "" { // white space
			if text[0] == '\n' {
				line++
			}
			text = text[1:]
			continue
		}
		text = text[len(word):]
		if current.line == 0 {
			current.line = line
		}
		line += strings.Count(word, "\n")
		shown := strings.Join(strings.Fields(word), " ")
		spoken = append(spoken, shown)
		bare := shown
		if before, _, code := strings.Cut(shown, "`"); code {
			bare = before + "`·`" + shown[strings.LastIndexByte(shown, '`')+1:]
		}
		bare = quotedWord.ReplaceAllString(bare, "`·`")
		plain = append(plain, strings.Trim(bare, "*_[]"))
		if strings.ContainsFunc(shown, func(r rune) bool { return unicode.IsLetter(r) || unicode.IsDigit(r) }) {
			current.words++
		}
		last := emphasis.ReplaceAllString(shown, "")
		if strings.HasSuffix(last, "?") || strings.HasSuffix(last, "!") ||
			strings.HasSuffix(last, ".") && !abbreviated.MatchString(shown) && !strings.HasSuffix(last, "..") {
			end()
		}
	}
	end()
	return all
}

// wordOf returns the first word of a text. Code with spaces in it is a part of the word. If the
// text starts with white space, wordOf returns "".
func wordOf(text string) string {
	code := false
	for i, r := range text {
		switch {
		case r == '`' && (code || strings.Contains(text[i+1:], "`")):
			code = !code
		case !code && unicode.IsSpace(r):
			return text[:i]
		}
	}
	return text
}

// findings returns the places in a text that break rules.
func findings(path string, all []prose, page bool) (found []finding) {
	for _, p := range all {
		words := 0
		for _, s := range p.sentences() {
			words += s.words
			add := func(rule string) { found = append(found, finding{path, s.line, rule, s.text}) }
			if s.words > sentenceWords {
				add(fmt.Sprintf("a sentence of %d words, want at most %d", s.words, sentenceWords))
			}
			lower := strings.ToLower(s.plain)
			for _, r := range wordRules {
				if said := r.in(lower); said != "" {
					add(fmt.Sprintf("%q: write %s", said, r.say))
				}
			}
			for _, r := range startRules {
				if !p.isName(s) && r.in(s.plain) != "" {
					first, _, _ := strings.Cut(s.plain, " ")
					add(fmt.Sprintf("it starts with %q: write %s", first, r.say))
				}
			}
		}
		if page && words > paragraphWords {
			found = append(found, finding{path, p.line, fmt.Sprintf("a paragraph of %d words, want at most %d", words,
				paragraphWords), fmt.Sprintf("%.80s…", strings.Join(strings.Fields(p.text), " "))})
		}
	}
	return found
}

// isName reports whether a sentence is a name: a heading, a label in italics, the title of a linked
// page, or a cell without a full stop.
func (p prose) isName(s sentence) bool {
	return p.heading || strings.HasPrefix(s.text, "*") || strings.HasPrefix(s.text, "[") ||
		p.cell && !strings.HasSuffix(s.plain, ".")
}

// in returns the first words in a text that break the rule, or "".
func (r wordRule) in(text string) string {
	if !slices.ContainsFunc(r.hints, func(hint string) bool { return strings.Contains(text, hint) }) {
		return ""
	}
	at := r.find.FindAllStringIndex(text, -1)
	if at == nil {
		return ""
	}
	var left [][]int
	if r.but != nil {
		left = r.but.FindAllStringIndex(text, -1)
	}
	for _, at := range at {
		inside := func(but []int) bool { return but[0] <= at[0] && at[1] <= but[1] }
		if !slices.ContainsFunc(left, inside) {
			return text[at[0]:at[1]]
		}
	}
	return ""
}

// Patterns in the lines of Markdown pages. The marker is what stands before the text of a list's
// item or a quotation.
var (
	marker    = regexp.MustCompile(`^\s*(?:[-*+]|\d+\.) +(?:\[[ x]\] +)?|^\s*(?:> ?)+`)
	ruleLine  = regexp.MustCompile(`^[\s|:-]+$`)
	pageCells = regexp.MustCompile("(?:[^|`\\\\]|\\\\.|`[^`]*`)+")
	htmlTag   = regexp.MustCompile(`(?s)<!--.*?-->|</?[a-z][^>\n]*>`)
)

// proseOfPage returns the paragraphs, items and cells of a Markdown page.
func proseOfPage(content string) (all []prose) {
	content = htmlTag.ReplaceAllStringFunc(content, func(tag string) string {
		return strings.Repeat("\n", strings.Count(tag, "\n"))
	})
	var open prose
	end := func() {
		if strings.TrimSpace(open.text) != "" {
			all = append(all, open)
		}
		open = prose{}
	}
	fence, lines := "", strings.Split(content, "\n")
	for i, line := range lines {
		trimmed := strings.TrimSpace(line)
		switch {
		case fence != "":
			if strings.HasPrefix(trimmed, fence) {
				fence = ""
			}
		case strings.HasPrefix(trimmed, "```"), strings.HasPrefix(trimmed, "~~~"):
			end()
			fence = trimmed[:3]
		case trimmed == "":
			end()
		case strings.HasPrefix(line, "#"):
			end()
			all = append(all, prose{line: i + 1, text: strings.TrimLeft(line, "# "), heading: true})
		case strings.HasPrefix(trimmed, "|"):
			end()
			head := i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "|") &&
				ruleLine.MatchString(lines[i+1])
			if ruleLine.MatchString(line) {
				continue
			}
			for _, cell := range pageCells.FindAllString(trimmed, -1) {
				if cell = strings.TrimSpace(cell); cell != "" {
					all = append(all, prose{line: i + 1, text: cell, heading: head, cell: true})
				}
			}
		case strings.HasPrefix(line, "    ") && open.text == "":
			// This line is code, or the second paragraph of an item. It is read as prose, which
			// does no harm for code.
			fallthrough
		default:
			mark := marker.FindString(line)
			if mark != "" {
				end()
			}
			if open.text == "" {
				open.line = i + 1
			} else {
				open.text += "\n"
			}
			open.text += line[len(mark):]
		}
	}
	end()
	return all
}

// A commentReader collects the lines of the comment that is being read, the open comment.
type commentReader struct {
	all    []prose
	lines  []string // lines of the open comment
	first  int      // number of the open comment's first line
	last   int      // number of its last line
	output bool     // whether the open comment is the expected output of an example
}

// proseOfComments returns the paragraphs and items in the comments of a Go file.
func proseOfComments(source []byte) []prose {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, scanner.ScanComments)
	var r commentReader
	code := 0 // number of the last line with code
	for {
		pos, tok, text := s.Scan()
		line := file.Line(pos)
		switch {
		case tok == token.EOF:
			r.end()
			return r.all
		case tok == token.SEMICOLON && text == "\n": // end of a line, or of the code before a comment
		case tok != token.COMMENT:
			code = line + strings.Count(text, "\n")
		case strings.HasPrefix(text, "// Code generated"):
			return nil
		default:
			r.add(line, text, source[file.Offset(pos):], line == code)
		}
	}
}

// add adds a comment to the open comment, or starts another one. The source starts with the
// comment's text. A trailing comment has code on its left.
func (r *commentReader) add(line int, text string, source []byte, trailing bool) {
	for _, directive := range []string{"//go:", "//nolint", "//line"} {
		if strings.HasPrefix(text, directive) {
			return
		}
	}
	if trailing || line != r.last+1 || len(r.lines) == 0 {
		r.end()
		r.first = line
	}
	lines := []string{strings.TrimPrefix(text, "//")}
	if block, ok := strings.CutPrefix(text, "/*"); ok {
		lines = strings.Split(strings.TrimSuffix(block, "*/"), "\n")
		for i := range lines {
			lines[i] = strings.TrimSpace(lines[i])
		}
	}
	said := strings.ToLower(strings.TrimSpace(lines[0]))
	r.output = r.output || strings.HasPrefix(said, "output:") || strings.HasPrefix(said, "unordered output:")
	if len(r.lines) == 0 {
		lines[0] = quoteName(lines[0], source)
	}
	r.lines = append(r.lines, lines...)
	r.last = line + len(lines) - 1
	if trailing {
		r.end()
	}
}

// end ends the open comment, and splits it into paragraphs and items.
func (r *commentReader) end() {
	if !r.output {
		r.all = append(r.all, proseOfComment(r.first, r.lines)...)
	}
	r.lines, r.output = nil, false
}

var declared = regexp.MustCompile(`^(?:\s*//[^\n]*\n)+\s*(?:func (?:\([^)\n]*\) )?|type |var |const )?(\w+)`)

// quoteName puts the first word of a comment in backquotes if it is the name that the next line
// declares.
func quoteName(line string, source []byte) string {
	name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	if m := declared.FindSubmatch(source); name == "" || m == nil || string(m[1]) != name {
		return line
	}
	return " `" + name + "` " + rest
}

// proseOfComment returns the paragraphs and items of a comment, without code blocks.
func proseOfComment(first int, lines []string) (all []prose) {
	var open prose
	end := func() {
		if strings.TrimSpace(open.text) != "" {
			all = append(all, open)
		}
		open = prose{}
	}
	list := false
	for i, line := range lines {
		mark := marker.FindString(line)
		switch {
		case strings.TrimSpace(line) == "":
			end()
			list = false
			continue
		case mark != "":
			end()
			list = true
		case strings.HasPrefix(line, "\t"), strings.HasPrefix(line, "   ") && !list:
			end() // a code block ends the paragraph
			continue
		case strings.HasPrefix(line, " # "):
			end()
			continue
		}
		if open.text == "" {
			open.line = first + i
		} else {
			open.text += "\n"
		}
		open.text += line[len(mark):]
	}
	end()
	return all
}

// filesWith returns the paths of the repository's files whose names have one of the endings,
// relative to its root.
func filesWith(t *testing.T, endings ...string) (paths []string) {
	t.Helper()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if name := d.Name(); d.IsDir() && path != ".." && (name == "testdata" || name == "node_modules" ||
			strings.HasPrefix(name, ".") && name != ".github" && name != ".ci") || path == "../.ci/node" ||
			path == "../.ci/cache" {
			return filepath.SkipDir
		}
		if !d.IsDir() && slices.ContainsFunc(endings, func(e string) bool { return strings.HasSuffix(path, e) }) {
			paths = append(paths, filepath.ToSlash(path)[len("../"):])
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// within reports whether a path is one of the given files, or in one of the given folders.
func within(path string, some []string) bool {
	return slices.ContainsFunc(some, func(s string) bool {
		s = strings.TrimSuffix(s, "/")
		return s == "." || path == s || strings.HasPrefix(path, s+"/")
	})
}

// An exception is a sentence that is allowed to break a rule.
type exception struct {
	path, text, reason string
	used               bool
}

func (e *exception) covers(f finding) bool {
	return e.path == f.path && strings.Contains(f.text, e.text)
}

// exceptions reads testdata/words.txt. Each line has a path, words of a sentence, and the reason,
// separated by " | ".
func exceptions(t *testing.T) (all []*exception) {
	t.Helper()
	content, err := os.ReadFile("testdata/words.txt")
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(content)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		parts := strings.Split(line, " | ")
		if len(parts) != 3 || parts[0] == "" || len(parts[1]) < 8 || len(parts[2]) < 8 {
			t.Errorf("testdata/words.txt: want a path, words of a sentence and a reason, separated by \" | \": %s",
				line)
			continue
		}
		all = append(all, &exception{path: parts[0], text: parts[1], reason: parts[2]})
	}
	return all
}

// checkWords checks the texts of files, and fails the test for each finding. The function read
// returns the paragraphs and items in a file.
func checkWords(t *testing.T, paths []string, read func(content []byte) []prose, page bool) {
	t.Helper()
	strict := clean
	switch {
	case *countWords:
		strict = []string{"."}
	case *wordsIn != "":
		strict = strings.Split(*wordsIn, ",")
	}
	for _, path := range strict {
		if _, err := os.Stat(filepath.Join("..", path)); err != nil {
			t.Errorf("there is no file or folder %s in the repository", path)
		}
	}
	stay := exceptions(t)
	var found []finding
	for _, path := range paths {
		if !within(path, strict) {
			continue
		}
		content, err := os.ReadFile(filepath.Join("..", path))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range findings(path, read(content), page) {
			if i := slices.IndexFunc(stay, func(e *exception) bool { return e.covers(f) }); i >= 0 {
				stay[i].used = true
				continue
			}
			found = append(found, f)
		}
	}
	if *countWords {
		printCounts(found, len(paths))
		return
	}
	for i, f := range found {
		if i == mostFindings {
			t.Errorf("and %d others", len(found)-i)
			break
		}
		t.Error(f)
	}
	for _, e := range stay {
		if !e.used && slices.Contains(paths, e.path) && within(e.path, strict) {
			t.Errorf("testdata/words.txt: no rule finds %q in %s: remove the line", e.text, e.path)
		}
	}
}

// printCounts prints the number of findings in each file.
func printCounts(found []finding, files int) {
	counts := make(map[string]int)
	for _, f := range found {
		counts[f.path]++
	}
	for _, path := range slices.SortedFunc(maps.Keys(counts), func(a, b string) int {
		return cmp.Or(cmp.Compare(counts[b], counts[a]), cmp.Compare(a, b))
	}) {
		fmt.Printf("%5d %s\n", counts[path], path)
	}
	fmt.Printf("%5d in %d of %d files\n", len(found), len(counts), files)
}

// TestWordsOfPages checks that pages are in plain English, as far as rules can tell.
//
//	go test ./docs -run TestWords                            # clean files stay clean
//	go test ./docs -run TestWords -args -count               # the number of findings by file
//	go test ./docs -run TestWords -args -in README.md,mapper # all findings in these
//
// If a sentence can't be changed, add it to testdata/words.txt, with the reason.
func TestWordsOfPages(t *testing.T) {
	checkWords(t, filesWith(t, ".md"), func(content []byte) []prose { return proseOfPage(string(content)) }, true)
}

// TestWordsOfComments checks the comments of Go files by the same rules as TestWordsOfPages.
func TestWordsOfComments(t *testing.T) {
	checkWords(t, filesWith(t, ".go"), proseOfComments, false)
}

// TestWordRules checks which sentences the rules find, and which they allow.
func TestWordRules(t *testing.T) {
	long := strings.Repeat("word ", sentenceWords)
	for text, want := range map[string]string{ // by text: the line and the rule of the finding; "": no finding
		"The range behind the page.":                                         `1: "behind"`,
		"A service behind a proxy falls some minutes behind.":                "",
		"An attempt in\nvain.":                                               `1: "in vain"`,
		"It returns so many bytes.":                                          `1: "so many"`,
		"There are so many ranges that it is cut.":                           "",
		"Half as many again. Whoever asks.":                                  `1: "as many again", 1: "whoever"`,
		"Two ranges, of which one is done.":                                  `1: "of which"`,
		"The size and that of the key, and those of parts.":                  `1: "that of"`,
		"So that of two tasks one runs.":                                     "",
		"It stays as it is.":                                                 `1: "as it is"`,
		"The key as it is stored.":                                           "",
		"It retries by itself, for good.":                                    `1: "by itself", 1: "for good"`,
		"For good reasons.":                                                  "",
		"Workers that have nothing to do begin pages.":                       `1: "have nothing to do", 1: "begin"`,
		"It has nothing to do with keys. It begins a read-only transaction.": "",
		"What fails is retried.":                                             `1: it starts with "What"`,
		"What is retried?":                                                   "",
		"# What is stored\n\n| What it is |\n|---|\n| What it says |":        "",
		"It ends: what is above is refused.":                                 `1: ": what is"`,
		"The page: what it shows, and who may see it.":                       "",
		"*What to do:* wait.":                                                "",
		"It has them deleted. It has the job be done.": `1: "has them deleted", 1: "has the ` +
			`job be done"`,
		"It has to be read, and had then been read.":                        "",
		"So does the job.":                                                  `1: it starts with "So"`,
		"One.\nTwo.\n" + long + "three.":                                    `3: a sentence of 31 words`,
		long + "`code with words`":                                          `1: a sentence of 31 words`,
		long[5:] + "`code with words`":                                      "",
		long[5:] + "e.g. [a](link%20with)":                                  `1: a sentence of 31 words`,
		long + "\n- " + long + "\n\n" + long + "\n| " + long + " | " + long: "",
		strings.Repeat("Five words are in it. ", paragraphWords/5+1):        `1: a paragraph of 85 words`,
		"The `behind` of `as it is`, and \"behind\".":                       "",
		"```\nbehind\n```\n<!-- behind\n-->\nbehind":                        `6: "behind"`,
	} {
		var got []string
		for _, f := range findings("x.md", proseOfPage(text), true) {
			before, _, _ := strings.Cut(f.rule, ": write")
			before, _, _ = strings.Cut(before, ", want")
			got = append(got, fmt.Sprintf("%d: %s", f.line, before))
		}
		if strings.Join(got, ", ") != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// TestWordsOfGo checks which comments of a Go file are read, and as which paragraphs.
func TestWordsOfGo(t *testing.T) {
	const source = `// Package p is behind.
//
//	behind = code
//
//   - item behind
package p

//go:generate behind

// behind is its name, and not
// behind the name.
func behind() {
	x := "behind" // one
	y := 1        // behind, two
	// begin
	_, _ = x, y /* so many
	as it is */
}

func Example() {
	// Output:
	// behind
}
`
	var got []string
	for _, f := range findings("x.go", proseOfComments([]byte(source)), false) {
		said, _, _ := strings.Cut(f.rule, ": write")
		got = append(got, fmt.Sprintf("%d: %s", f.line, said))
	}
	if said := strings.Join(got, ", "); said != `1: "behind", 5: "behind", 10: "behind", 14: "behind", 15: "begin", `+
		`16: "so `+
		`many", 16: "as it is"` {
		t.Error(said)
	}
}
