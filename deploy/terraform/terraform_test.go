// Package terraform_test checks the module as Terraform would, as far as that is possible without
// Terraform and its provider: the machines that build this project can download neither. It
// compares arguments with the provider's schema (schema.txt), plans the module with several
// variables (plan_test.go), and searches the plan for settings that the API refuses
// (refusals_test.go).
package terraform_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// A module has the texts of the .tf files in a folder, by file name.
type module map[string]string

func read(t *testing.T, folder string) module {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.tf"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no files in %s: %v", folder, err)
	}
	m := make(module)
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		m[file] = string(text)
	}
	return m
}

// A reader checks a module, and records its mistakes.
type reader struct {
	blocks   []*hclsyntax.Block
	declared map[string]*hclsyntax.Block // by address, such as var.project or google_service_account.tasks
	locals   map[string]*hclsyntax.Attribute
	used     map[string]bool
	schemas  map[string]*schema
	problems []string
}

func (r *reader) say(at hcl.Range, format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf("%s:%d: ", filepath.Base(at.Filename),
		at.Start.Line)+fmt.Sprintf(format, args...))
}

// check checks a module, and fails the test if it has mistakes. The argument modules has the
// modules that it may use, by their source.
func check(t testing.TB, m module, modules map[string]*reader) *reader {
	t.Helper()
	r := &reader{
		schemas: schemas(t), declared: map[string]*hclsyntax.Block{}, locals: map[string]*hclsyntax.Attribute{},
		used: map[string]bool{},
	}
	for _, name := range slices.Sorted(maps.Keys(m)) {
		file, diagnostics := hclsyntax.ParseConfig([]byte(m[name]), name, hcl.InitialPos)
		if diagnostics.HasErrors() {
			r.problems = append(r.problems, diagnostics.Error())
			continue
		}
		r.blocks = append(r.blocks, file.Body.(*hclsyntax.Body).Blocks...)
	}
	for _, b := range r.blocks {
		address := map[string]string{"variable": "var.", "output": "output.", "module": "module.",
			"data": "data."}[b.Type] + strings.Join(b.Labels, ".")
		switch b.Type {
		case "locals":
			for name, a := range b.Body.Attributes {
				if r.locals[name] != nil {
					r.say(a.Range(), "local.%s is there twice", name)
				}
				r.locals[name] = a
			}
			continue
		case "terraform", "provider":
			continue
		case "variable", "output", "module", "resource", "data":
		default:
			r.say(b.Range(), "there is no block %s", b.Type)
		}
		if r.declared[address] != nil {
			r.say(b.Range(), "%s is there twice", address)
		}
		r.declared[address] = b
	}
	for _, b := range r.blocks {
		r.block(b, modules)
	}
	for address, b := range r.declared {
		if b.Type == "variable" && !r.used[address] {
			r.say(b.Range(), "%s is not used", address)
		}
	}
	for name, a := range r.locals {
		if !r.used["local."+name] {
			r.say(a.Range(), "local.%s is not used", name)
		}
	}
	return r
}

// block checks one block at the top level of a file.
func (r *reader) block(b *hclsyntax.Block, modules map[string]*reader) {
	switch b.Type {
	case "variable":
		r.needs(b, "description", "type")
	case "output":
		r.needs(b, "description", "value")
	case "module":
		source := literal(b.Body.Attributes["source"])
		inner := modules[source]
		if inner == nil {
			r.say(b.Range(), "there is no module %q", source)
			break
		}
		for name, a := range b.Body.Attributes {
			if name != "source" && inner.declared["var."+name] == nil {
				r.say(a.Range(), "the module has no variable %s", name)
			}
		}
		for address, v := range inner.declared {
			name, ok := strings.CutPrefix(address, "var.")
			if ok && v.Body.Attributes["default"] == nil && b.Body.Attributes[name] == nil {
				r.say(b.Range(), "the module needs %s", name)
			}
		}
	case "resource", "data":
		s := r.schemas[b.Type+" "+b.Labels[0]]
		if s == nil {
			r.say(b.Range(), "schema.txt does not have the %s %s: see schema/main.go", b.Type, b.Labels[0])
			break
		}
		r.matches(b.Body, s, b.Labels[0], true)
	}
	r.references(b.Body, nil, b.Type == "module")
}

func (r *reader) needs(b *hclsyntax.Block, names ...string) {
	for _, name := range names {
		if b.Body.Attributes[name] == nil {
			r.say(b.Range(), "%s %s has no %s", b.Type, strings.Join(b.Labels, "."), name)
		}
	}
}

// references checks that the names to which expressions in a body refer exist. The iterators are
// the names of the dynamic blocks around the body.
func (r *reader) references(body *hclsyntax.Body, iterators []string, _ bool) {
	for _, a := range body.Attributes {
		for _, v := range a.Expr.Variables() {
			r.resolve(v, iterators)
		}
	}
	for _, b := range body.Blocks {
		inner := iterators
		if b.Type == "dynamic" {
			inner = append(slices.Clip(iterators), b.Labels[0])
		}
		r.references(b.Body, inner, false)
	}
}

// metaArguments are the arguments that Terraform accepts in every resource.
var metaArguments = []string{"for_each", "count", "depends_on", "provider"}

// types are the type names that the declaration of a variable may have.
var types = []string{"string", "number", "bool", "list", "any"}

func (r *reader) resolve(v hcl.Traversal, iterators []string) {
	name := func(i int) string {
		if i < len(v) {
			if step, ok := v[i].(hcl.TraverseAttr); ok {
				return step.Name
			}
		}
		return ""
	}
	root := v.RootName()
	switch {
	case slices.Contains(iterators, root), slices.Contains([]string{"each", "count", "path", "self"}, root),
		len(v) == 1 && slices.Contains(types, root):
	case root == "var":
		if r.used["var."+name(1)] = true; r.declared["var."+name(1)] == nil {
			r.say(v.SourceRange(), "there is no var.%s", name(1))
		}
	case root == "local":
		if r.used["local."+name(1)] = true; r.locals[name(1)] == nil {
			r.say(v.SourceRange(), "there is no local.%s", name(1))
		}
	case root == "module":
		if r.declared["module."+name(1)] == nil {
			r.say(v.SourceRange(), "there is no module.%s", name(1))
		}
	default:
		at, address := 1, root
		if root == "data" {
			at, address = 2, name(1)
		}
		prefix := map[bool]string{true: "data.", false: ""}[root == "data"]
		if r.declared[prefix+address+"."+name(at)] == nil {
			r.say(v.SourceRange(), "there is no %s%s.%s", prefix, address, name(at))
			return
		}
		s := r.schemas[map[bool]string{true: "data ", false: "resource "}[root == "data"]+address]
		if s == nil {
			return // another error already says that this type is unknown
		}
		attribute := name(at + 1)
		if _, ok := v[min(at+1, len(v)-1)].(hcl.TraverseIndex); ok {
			attribute = name(at + 2)
		}
		if _, ok := s.attributes[attribute]; attribute != "" && !ok {
			r.say(v.SourceRange(), "%s has no attribute %s", address, attribute)
		}
	}
}

// literal returns the value of an attribute that is a literal string.
func literal(a *hclsyntax.Attribute) string {
	if a == nil {
		return ""
	}
	v, diagnostics := a.Expr.Value(nil)
	if diagnostics.HasErrors() || v.Type().FriendlyName() != "string" {
		return ""
	}
	return v.AsString()
}

// TestModule checks the module, and the example that uses it.
func TestModule(t *testing.T) {
	m := check(t, read(t, "."), nil)
	for _, p := range m.problems {
		t.Error(p)
	}
	for _, p := range check(t, read(t, "example"), map[string]*reader{"./..": m}).problems {
		t.Error("example: ", p)
	}
}

// TestMistakes makes each kind of mistake in a module, and checks that it is found.
func TestMistakes(t *testing.T) {
	inner := check(t, module{"inner.tf": `
variable "name" {
  description = "Its name."
  type        = string
}
output "name" {
  description = "Its name."
  value       = var.name
}`}, nil)
	if len(inner.problems) > 0 {
		t.Fatal(inner.problems)
	}
	account := func(inside string) string {
		return "resource \"google_service_account\" \"a\" {\n" + inside + "\n}\n"
	}
	budget := func(inside string) string {
		return "resource \"google_billing_budget\" \"b\" {\n" + inside + "\n}\n"
	}
	for _, test := range []struct{ want, text string }{
		{"", account("account_id = \"a\"")},
		{"there is no var.none", account("account_id = var.none")},
		{"there is no local.none", account("account_id = local.none")},
		{"there is no google_service_account.b", account("account_id = google_service_account.b.email")},
		{"google_service_account has no attribute mail", account("account_id = google_service_account.a.mail")},
		{"there is no data.google_project.p", account("account_id = data.google_project.p.number")},
		{"google_service_account has no argument accountid", account("accountid = \"a\"")},
		{"google_service_account needs account_id", account("display_name = \"a\"")},
		{"is there twice", account("account_id = \"a\"") + account("account_id = \"a\"")},
		{"Invalid expression", account("account_id = ")},
		{"schema.txt does not have the resource google_account", "resource \"google_account\" \"a\" {\n}\n"},
		{"variable x has no description", "variable \"x\" {\n  type = string\n}\n"},
		{"var.x is not used", "variable \"x\" {\n  type = string\n  description = \"x\"\n}\n"},
		{"local.x is not used", "locals {\n  x = 1\n}\n"},
		{"output x has no description", "output \"x\" {\n  value = 1\n}\n"},
		{"the module needs name", "module \"m\" {\n  source = \"inner\"\n}\n"},
		{"the module has no variable nam", "module \"m\" {\n  source = \"inner\"\n  name = 1\n  nam = 2\n}\n"},
		{"there is no module \"other\"", "module \"m\" {\n  source = \"other\"\n}\n"},
		{"there is no module.n", "output \"x\" {\n  description = \"x\"\n  value = module.n.name\n}\n"},
		{"needs a block amount", budget("billing_account = 1\nbudget_filter {\n calendar_period = 1\n}")},
		{"has no block specifiedamount", budget("billing_account = 1\namount {\n  specifiedamount {}\n}")},
		{"needs for_each and content", budget("billing_account = 1\ndynamic \"amount\" {\n  for_each = [1]\n}")},
		{"there is no amount.key", budget("billing_account = amount.key\namount {}")},
		{"one block amount at most", budget("billing_account = 1\namount {}\namount {}")},
		{"exactly one of calendar_period, custom_period", budget("billing_account = 1\namount {}\nbudget_filter {}")},
		{"name is computed", budget("billing_account = 1\namount {}\nname = 1")},
		{"has to be a string", budget("billing_account = [1]\namount {}")},
		{"has to be a boolean", budget("billing_account = 1\namount {\n last_period_amount = \"yes\"\n}")},
		{"has to be a string",
			budget("billing_account = 1\namount {}\nall_updates_rule {\n pubsub_topic = [each.key]\n}")},
		{"there is no block reource", "reource \"google_service_account\" \"a\" {\n}\n"},
	} {
		found := strings.Join(check(t, module{"a.tf": test.text}, map[string]*reader{"inner": inner}).problems, "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s\nhas the problems %q, want %q", test.text, found, test.want)
		}
	}
}

// TestEnvironment checks that the service's container gets exactly the environment variables that
// its program reads.
func TestEnvironment(t *testing.T) {
	m := check(t, read(t, "."), nil)
	given := make(map[string]bool)
	for _, item := range m.locals["environment"].Expr.(*hclsyntax.ObjectConsExpr).Items {
		given[hcl.ExprAsKeyword(item.KeyExpr)] = true
	}
	// The variable secrets can set others.
	secrets := regexp.MustCompile(`contains\(\[([^\]]+)\], name\)`).FindStringSubmatch(read(t, ".")["variables.tf"])
	if secrets == nil {
		t.Fatal("the variable secrets does not say which variables it can set")
	}
	for name := range strings.SplitSeq(secrets[1], ", ") {
		given[strings.Trim(name, `"`)] = true
	}
	const file = "../../examples/cloudrun/config.go"
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	reads := make(map[string]bool)
	ast.Inspect(f, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if name, _ := strconv.Unquote(l.Value); regexp.MustCompile(`^[A-Z][A-Z_]{3,}$`).MatchString(name) {
				reads[name] = true
			}
		}
		return true
	})
	// Variables that the module need not set: Cloud Run sets some, the URLs of keys are only for
	// tests, and the module itself creates the queues.
	for _, own := range []string{"PORT", "HOST", "K_SERVICE", "K_REVISION", "OIDC_KEYS_URL", "IAP_KEYS_URL",
		"CREATE_QUEUES"} {
		if !reads[own] {
			t.Errorf("%s does not read %s: take it off this list", file, own)
		}
		delete(reads, own)
	}
	// The OpenTelemetry library reads these variables, and not the program's own code.
	const endpoint, service = "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_SERVICE_NAME"
	if !given[endpoint] || !given[service] {
		t.Errorf("the service gets no %s or %s", endpoint, service)
	}
	for name := range given {
		if !reads[name] && !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("the service gets %s, and does not read it", name)
		}
	}
	for name := range reads {
		if !given[name] && !strings.HasPrefix(name, "OTEL_") {
			t.Errorf("the service reads %s, and does not get it", name)
		}
	}
}

// TestQueries checks that the metrics in alarms and charts are documented, and that the alarms link
// to sections of docs/operate.md.
func TestQueries(t *testing.T) {
	docs, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := make(map[string]bool)
	for _, m := range regexp.MustCompile("\\| `(scattermap_[a-z_]+)` \\|").FindAllStringSubmatch(string(docs), -1) {
		documented[m[1]] = true
	}
	all := ""
	for _, file := range []string{"alerts.tf", "dashboard.tf"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	queried := regexp.MustCompile(`scattermap_[a-z_]+`).FindAllString(all, -1)
	if len(queried) < 10 {
		t.Errorf("only %q are queried", queried)
	}
	for _, name := range queried {
		if name = strings.TrimSuffix(name, "_bucket"); !documented[name] && name != "scattermap_mapper" &&
			name != "scattermap_reason" {
			t.Errorf("%s is not in docs/metrics.md", name)
		}
	}
	page, err := os.ReadFile("../../docs/operate.md")
	if err != nil {
		t.Fatal(err)
	}
	p := planOf(t, map[string]string{"collector": "true"})
	titles := make(map[string]bool)
	for _, alarm := range p.instances["google_monitoring_alert_policy"] {
		_, anchor, _ := strings.Cut(text(alarm, "documentation", 0, "content"), "#")
		section := strings.ReplaceAll(anchor, "-", " ")
		if section == "" || !regexp.MustCompile(`(?mi)^#+ `+section+`$`).Match(page) {
			t.Errorf("%s: docs/operate.md has no section %q", text(alarm, "display_name"), section)
		}
		if title := text(alarm, "display_name"); titles[title] {
			t.Errorf("two alarms are called %q", title)
		} else {
			titles[title] = true
		}
	}
	if len(titles) < 6 {
		t.Errorf("there are only the alarms %v", titles)
	}
}
