package docs_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// A block is a fenced code block of a page.
type block struct {
	page     string
	line     int    // number of its first line of text
	heading  string // the heading above it
	language string
	text     string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// readPage returns the code blocks of a page. The result spans has the texts in backquotes in its
// sentences, by line number.
func readPage(t testing.TB, page string) (blocks []block, spans map[int][]string) {
	t.Helper()
	content, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	spans = make(map[int][]string)
	code := regexp.MustCompile("`([^`]+)`")
	var heading string
	var open *block
	for i, line := range strings.Split(string(content), "\n") {
		fence, isFence := strings.CutPrefix(line, "```")
		switch {
		case isFence && open == nil:
			open = &block{page: page, line: i + 2, heading: heading, language: fence}
		case isFence:
			blocks = append(blocks, *open)
			open = nil
		case open != nil:
			open.text += line + "\n"
		case strings.HasPrefix(line, "#"):
			heading = strings.TrimSpace(strings.TrimLeft(line, "#"))
		default:
			for _, m := range code.FindAllStringSubmatch(line, -1) {
				spans[i+1] = append(spans[i+1], m[1])
			}
		}
	}
	if open != nil {
		t.Fatalf("%s: a block without an end", open)
	}
	return blocks, spans
}

// A shell is a parser that splits a shell script into commands, and commands into words without
// quotes. It does not replace variables.
type shell struct {
	text     string
	at       int
	commands [][]string
	problem  error
}

// commandsOf returns the words of each simple command of a script, also of commands inside $(...).
func commandsOf(script string) ([][]string, error) {
	s := &shell{text: script}
	s.list(false)
	if s.problem == nil && s.at < len(s.text) {
		s.problem = errors.New("a ) that closes nothing")
	}
	return s.commands, s.problem
}

var assignment = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*=`)

// list parses commands up to the end. If inside is set, it parses up to the parenthesis that closes
// a $(.
func (s *shell) list(inside bool) {
	var words []string
	var delimiters []string // the delimiters of here documents that start on the next line
	end := func() {
		for len(words) > 0 && (assignment.MatchString(words[0]) || words[0] == "export" || words[0] == "!" ||
			words[0] == "then" || words[0] == "do") {
			words = words[1:]
		}
		if len(words) > 0 {
			s.commands = append(s.commands, words)
		}
		words = nil
	}
	for s.at < len(s.text) && s.problem == nil {
		switch c := s.text[s.at]; {
		case c == ' ' || c == '\t':
			s.at++
		case strings.HasPrefix(s.text[s.at:], "\\\n"):
			s.at += 2
		case c == '#':
			s.at += strings.IndexByte(s.text[s.at:]+"\n", '\n')
		case c == '\n':
			end()
			s.at++
			for _, d := range delimiters {
				_, rest, found := strings.Cut("\n"+s.text[s.at:], "\n"+d+"\n")
				if !found {
					s.problem = fmt.Errorf("a here document without its %s", d)
				}
				s.at = len(s.text) - len(rest)
			}
			delimiters = nil
		case strings.ContainsRune(";&|", rune(c)):
			end()
			s.at++
		case c == '(':
			end()
			s.at++
			s.list(true)
		case c == ')':
			end()
			if inside {
				s.at++
			}
			return
		case c == '<' || c == '>':
			operator := regexp.MustCompile(`^(<<-?|<|>>|>)&?`).FindString(s.text[s.at:])
			s.at += len(operator)
			for s.at < len(s.text) && s.text[s.at] == ' ' {
				s.at++
			}
			if target := s.word(); strings.HasPrefix(operator, "<<") {
				delimiters = append(delimiters, target)
			}
		default:
			word := s.word()
			if s.at < len(s.text) && (s.text[s.at] == '>' || s.text[s.at] == '<') && (word == "1" || word == "2") {
				continue // the number is the file descriptor of a redirection
			}
			words = append(words, word)
		}
	}
	if inside && s.problem == nil { // the script ends before the closing parenthesis
		s.problem = errors.New("a ( without its )")
	}
	end()
}

// word parses one word.
func (s *shell) word() string {
	var word strings.Builder
	quoted := false
	for s.at < len(s.text) && s.problem == nil {
		c := s.text[s.at]
		switch {
		case strings.HasPrefix(s.text[s.at:], "$("):
			s.at += 2
			s.list(true)
			word.WriteString("SUBSTITUTED")
		case c == '"':
			quoted = !quoted
			s.at++
		case c == '\\' && s.at+1 < len(s.text):
			if s.text[s.at+1] != '\n' {
				word.WriteByte(s.text[s.at+1])
			}
			s.at += 2
		case quoted:
			word.WriteByte(c)
			s.at++
		case c == '\'':
			text, _, found := strings.Cut(s.text[s.at+1:], "'")
			if !found {
				s.problem = errors.New("a ' without its end")
			}
			word.WriteString(text)
			s.at += len(text) + 2
		case strings.ContainsRune(" \t\n;&|()<>", rune(c)):
			return word.String()
		default:
			word.WriteByte(c)
			s.at++
		}
	}
	if quoted && s.problem == nil {
		s.problem = errors.New("a \" without its end")
	}
	return word.String()
}

// TestCommandsOf checks the commands that commandsOf finds in scripts.
func TestCommandsOf(t *testing.T) {
	for script, want := range map[string][][]string{
		"a b  c\n\nd":                {{"a", "b", "c"}, {"d"}},
		"a \\\n  b # c\n# d":         {{"a", "b"}},
		"a 'b c' \"d e\" f\\ g ''":   {{"a", "b c", "d e", "f g", ""}},
		"X=1 export Y=\"$(a b)\"; c": {{"a", "b"}, {"c"}},
		"a \"$(b \"$(c d)\" e)\" f": {{"c", "d"}, {"b", "SUBSTITUTED", "e"}, {"a", "SUBSTITUTED",
			"f"}},
		"a | b && c || d & e":                        {{"a"}, {"b"}, {"c"}, {"d"}, {"e"}},
		"a > x 2>&1 < y b":                           {{"a", "b"}},
		"cat > f <<END\ngcloud \" x\nEND\na":         {{"cat"}, {"a"}},
		"(a; b) | c":                                 {{"a"}, {"b"}, {"c"}},
		"a --data '{\"x\": [1]}' \"$P:q\" https://x": {{"a", "--data", `{"x": [1]}`, "$P:q", "https://x"}},
	} {
		got, err := commandsOf(script)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %q, %v; want %q", script, got, err, want)
		}
	}
	for _, script := range []string{"a 'b", "a \"b", "a $(b", "a <<END\nb"} {
		if got, err := commandsOf(script); err == nil {
			t.Errorf("%q: %q", script, got)
		}
	}
}
