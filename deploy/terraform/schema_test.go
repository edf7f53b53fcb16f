package terraform_test

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
)

// A schema has the arguments and blocks that a type of resource or block accepts.
type schema struct {
	attributes map[string]attribute
	blocks     map[string]*schema
	required   bool // at least one such block is required
	many       bool // several such blocks are allowed
	oneOf      [][]string
	deprecated bool
}

type attribute struct {
	kind               string // the type of the values: string, number, boolean, list or map
	required, computed bool
	deprecated         bool
}

// builtIn has the schemas of the resources that Terraform and OpenTofu have without a provider, in
// the form of schema.txt.
const builtIn = `resource terraform_data
	input optional any
	triggers_replace optional any
	output computed any
	id computed string
	provisioner block optional many
		command required string
`

// schemas reads schema.txt, which schema/main.go has written. The keys are texts such as "resource
// google_project_service" or "data google_project".
func schemas(t testing.TB) map[string]*schema {
	t.Helper()
	all, err := readSchemas()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

var readSchemas = sync.OnceValues(func() (map[string]*schema, error) {
	b, err := os.ReadFile("schema.txt")
	if err != nil {
		return nil, err
	}
	first, rest, _ := strings.Cut(string(b), "\n")
	if !regexp.MustCompile(`^provider \S+/google \d+\.\d+\.\d+, from @cdktf/provider-google \d`).MatchString(first) {
		return nil, fmt.Errorf("schema.txt begins with %q", first)
	}
	return parseSchemas(rest + builtIn)
})

var exclusive = regexp.MustCompile(`(?i)exactly one of ((?:'\w+'(?:, | and | or )?)+)`)

// parseSchemas parses the form of schema.txt: lines such as "name optional string // Deprecated".
// The lines inside a block are indented by one more tab.
func parseSchemas(text string) (map[string]*schema, error) {
	all := make(map[string]*schema)
	var around []*schema // the enclosing schemas, by indentation
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		words := strings.TrimLeft(line, "\t")
		depth := len(line) - len(words)
		if words == "" {
			continue
		}
		inner := &schema{attributes: map[string]attribute{}, blocks: map[string]*schema{}}
		if depth == 0 {
			all[words], around = inner, []*schema{inner}
			continue
		}
		if depth > len(around) {
			return nil, fmt.Errorf("%q is indented too far", line)
		}
		outer := around[depth-1]
		words, note, _ := strings.Cut(words, " // ")
		w := strings.Fields(words)
		deprecated := strings.Contains(strings.ToLower(note), "deprecated")
		if m := exclusive.FindStringSubmatch(note); m != nil {
			outer.oneOf = append(
				outer.oneOf,
				regexp.MustCompile(`\w+`).
					FindAllString(strings.NewReplacer(" and ", " ", " or ", " ").Replace(m[1]), -1),
			)
		}
		switch {
		case len(w) == 4 && w[1] == "block":
			inner.required, inner.many, inner.deprecated = w[2] == "required", w[3] == "many", deprecated
			outer.blocks[w[0]] = inner
			around = append(around[:depth], inner)
		case len(w) == 3 && (w[1] == "required" || w[1] == "optional" || w[1] == "computed"):
			outer.attributes[w[0]] = attribute{
				kind:       w[2],
				required:   w[1] == "required",
				computed:   w[1] == "computed",
				deprecated: deprecated,
			}
		default:
			return nil, fmt.Errorf("what is %q?", line)
		}
	}
	return all, nil
}

// fits reports whether an expression may have the attribute's type. It looks only at the form of
// the expression, such as a literal string.
func (a attribute) fits(e hclsyntax.Expression) bool {
	v, diagnostics := e.Value(nil)
	if diagnostics.HasErrors() {
		_, tuple := e.(*hclsyntax.TupleConsExpr)
		_, object := e.(*hclsyntax.ObjectConsExpr)
		_, text := e.(*hclsyntax.TemplateExpr)
		switch a.kind {
		case "any":
			return true
		case "list":
			return !object && !text
		case "map":
			return !tuple && !text
		case "string":
			return !tuple && !object
		default:
			return !tuple && !object && !text
		}
	}
	switch typ := v.Type(); a.kind {
	case "string":
		return typ == cty.String || typ == cty.Number
	case "number":
		return typ == cty.Number
	case "boolean":
		return typ == cty.Bool
	case "list":
		return typ.IsTupleType()
	case "map":
		return typ.IsObjectType()
	}
	return true
}

// matches records unknown, missing and mutually exclusive arguments in a body. The text what names
// the body in messages.
func (r *reader) matches(body *hclsyntax.Body, s *schema, what string, outmost bool) {
	there := make(map[string]int)
	for name, a := range body.Attributes {
		known, ok := s.attributes[name]
		if !ok && outmost && slices.Contains(metaArguments, name) {
			continue
		}
		switch there[name]++; {
		case !ok:
			r.say(a.Range(), "%s has no argument %s", what, name)
		case known.computed:
			r.say(a.Range(), "%s.%s is computed, and can't be set", what, name)
		case known.deprecated:
			r.say(a.Range(), "%s.%s is deprecated", what, name)
		case !known.fits(a.Expr):
			r.say(a.Range(), "%s.%s has to be a %s", what, name, known.kind)
		}
	}
	for _, b := range body.Blocks {
		name, inner := b.Type, b.Body
		if outmost && name == "lifecycle" {
			continue
		}
		if b.Type == "dynamic" {
			name, inner = b.Labels[0], nil
			for _, content := range b.Body.Blocks {
				if content.Type == "content" {
					inner = content.Body
				}
			}
			if inner == nil || b.Body.Attributes["for_each"] == nil {
				r.say(b.Range(), "the dynamic %s needs for_each and content", name)
				continue
			}
		}
		known := s.blocks[name]
		switch there[name]++; {
		case known == nil:
			r.say(b.Range(), "%s has no block %s", what, name)
			continue
		case known.deprecated:
			r.say(b.Range(), "%s.%s is deprecated", what, name)
		case !known.many && there[name] > 1:
			r.say(b.Range(), "%s has one block %s at most", what, name)
		}
		r.matches(inner, known, what+"."+name, false)
	}
	for name, a := range s.attributes {
		if a.required && there[name] == 0 {
			r.say(body.Range(), "%s needs %s", what, name)
		}
	}
	for name, b := range s.blocks {
		if b.required && there[name] == 0 {
			r.say(body.Range(), "%s needs a block %s", what, name)
		}
	}
	for _, names := range s.oneOf {
		n := 0
		for _, name := range names {
			n += there[name]
		}
		if n != 1 {
			r.say(body.Range(), "%s needs exactly one of %s", what, strings.Join(names, ", "))
		}
	}
}
