// Command schema lists which arguments the resources of deploy/terraform have. It reads them from
// the types of npm's @cdktf/provider-google, which are generated from the provider's own schema.
// The versions of both are in the first line of its output.
//
//	npm pack @cdktf/provider-google@16.12.1 && tar xzf cdktf-provider-google-16.12.1.tgz
//	go run ./deploy/terraform/schema package > deploy/terraform/schema.txt
//
// It finds the resources by their names in the module's files, so a new resource needs only a new
// run.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/terraform/schema PACKAGE, the folder of @cdktf/provider-google")
		os.Exit(2)
	}
	text, err := schemaOf(os.Args[1], "deploy/terraform/*.tf", "deploy/terraform/example/*.tf")
	if err != nil {
		fmt.Fprintln(os.Stderr, "schema:", err)
		os.Exit(1)
	}
	fmt.Print(text)
}

var used = regexp.MustCompile(`(?m)^(resource|data) "(google_[a-z0-9_]+)"`)

// schemaOf returns the schemas of the resources that Terraform files use, in the form of
// schema.txt. The patterns select the files. The folder has the npm package @cdktf/provider-google.
func schemaOf(folder string, patterns ...string) (string, error) {
	var about struct {
		Version string
		CDKTF   struct {
			Provider struct{ Name, Version string }
		}
	}
	b, err := os.ReadFile(filepath.Join(folder, "package.json"))
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(b, &about); err != nil {
		return "", err
	}
	names := make(map[string]bool)
	for _, pattern := range patterns {
		files, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		for _, file := range files {
			b, err := os.ReadFile(file)
			if err != nil {
				return "", err
			}
			for _, m := range used.FindAllStringSubmatch(string(b), -1) {
				names[m[1]+" "+m[2]] = true
			}
		}
	}
	var s strings.Builder
	fmt.Fprintf(&s, "provider %s %s, from @cdktf/provider-google %s: see schema/main.go\n",
		about.CDKTF.Provider.Name, about.CDKTF.Provider.Version, about.Version)
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if err := resource(&s, folder, name); err != nil {
			return "", err
		}
	}
	return s.String(), nil
}

// resource writes the schema of one resource, whose name is such as "resource
// google_project_service".
func resource(s *strings.Builder, folder, name string) error {
	kind, full, _ := strings.Cut(name, " ")
	short := strings.ReplaceAll(strings.TrimPrefix(full, "google_"), "_", "-")
	if kind == "data" {
		short = "data-google-" + short
	}
	b, err := os.ReadFile(filepath.Join(folder, "lib", short, "index.d.ts"))
	if err != nil {
		return err
	}
	t := types{text: string(b)}
	if !strings.Contains(t.text, fmt.Sprintf("tfResourceType = %q", full)) {
		return fmt.Errorf("%s is not the types of %s", short, full)
	}
	class := regexp.MustCompile(`export declare class (\w+) extends cdktf\.Terraform(?:Resource|DataSource)`).
		FindStringSubmatch(t.text)
	if class == nil {
		return fmt.Errorf("%s has no class", short)
	}
	fmt.Fprintf(s, "%s\n", name)
	return t.write(s, class[1]+"Config", class[1], "\t")
}

// types is the text of one file of TypeScript declarations.
type types struct{ text string }

// block returns the text between the braces of the declaration that starts with head. It returns
// false if there is none.
func (t types) block(head string) (string, bool) {
	at := regexp.MustCompile(`export (?:interface|declare class) ` + head + ` [^\n]*\{\n`).FindStringIndex(t.text)
	if at == nil {
		return "", false
	}
	inside, _, _ := strings.Cut(t.text[at[1]:], "\n}\n")
	return inside, true
}

var (
	member = regexp.MustCompile(`(?s)/\*\*(.*?)\*/\s*readonly (\w+)(\??): ([^;{]+|\{[^}]*\}[^;]*);`)
	anchor = regexp.MustCompile(`#([a-z0-9_]+) \w+#[a-z0-9_]+\}`)
	getter = regexp.MustCompile(`(?m)^    get (\w+)\(\): ([^;]+);`)
	rule   = regexp.MustCompile(
		`[^.]*\b([Ee]xactly one of|[Aa]t most one of|[Aa]t least one of|[Oo]nly one of|[Cc]onflicts with|` +
			`mutually exclusive|[Dd]eprecated)\b[^.]*`,
	)
	upper = regexp.MustCompile(`[A-Z]`)
)

// write writes the members of a resource to s. These are the members of the TypeScript interface
// iface, which are the arguments, and then the class's getters, which are computed.
func (t types) write(s *strings.Builder, iface, class, indent string) error {
	inside, ok := t.block(iface)
	if !ok {
		return fmt.Errorf("there is no interface %s", iface)
	}
	there := make(map[string]bool)
	for _, m := range member.FindAllStringSubmatch(inside, -1) {
		doc, name, optional, typ := m[1], m[2], m[3] == "?", strings.TrimSpace(m[4])
		there[name] = true
		link := anchor.FindStringSubmatch(doc)
		if link == nil {
			return fmt.Errorf("%s.%s has no name", iface, name)
		}
		need := map[bool]string{true: "optional", false: "required"}[optional]
		note := ""
		doc, _, _ = strings.Cut(doc, "Docs at Terraform Registry")
		doc = strings.Join(strings.Fields(strings.ReplaceAll(doc, "\n    *", " ")), " ")
		for _, r := range rule.FindAllString(doc, -1) {
			note += " // " + strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(r), "* "))
		}
		typ = strings.TrimSuffix(typ, " | cdktf.IResolvable")
		inner, many := strings.CutSuffix(typ, "[]")
		if _, ok := t.block(inner); ok {
			fmt.Fprintf(
				s,
				"%s%s block %s %s%s\n",
				indent,
				link[1],
				need,
				map[bool]string{true: "many", false: "one"}[many],
				note,
			)
			if err := t.write(s, inner, inner+"OutputReference", indent+"\t"); err != nil {
				return err
			}
			continue
		}
		fmt.Fprintf(s, "%s%s %s %s%s\n", indent, link[1], need, kindOf(typ), note)
	}
	inside, _ = t.block(class)
	for _, m := range getter.FindAllStringSubmatch(inside, -1) {
		name := m[1]
		if there[name] || strings.HasSuffix(name, "Input") || name == "internalValue" {
			continue
		}
		snake := strings.ToLower(upper.ReplaceAllString(name, "_$0"))
		fmt.Fprintf(s, "%s%s computed %s\n", indent, snake, cmp.Or(kindOf(m[2]), "block"))
	}
	return nil
}

// kindOf returns the name that schema.txt has for a TypeScript type, such as string or list.
func kindOf(typ string) string {
	switch typ = strings.TrimSuffix(typ, " | cdktf.IResolvable"); {
	case typ == "string" || typ == "number" || typ == "boolean":
		return typ
	case strings.HasSuffix(typ, "[]"):
		return "list"
	case strings.HasPrefix(typ, "{") || strings.HasSuffix(typ, "Map"):
		return "map"
	}
	return ""
}
