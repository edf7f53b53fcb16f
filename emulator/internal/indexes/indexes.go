// Package indexes decides which composite indexes a query needs.
//
// A [Set] holds the indexes of an index.yaml. A [Shape] is what a query asks of
// an index: its equalities, and then its orders. Many shapes need no composite
// index; [Set.Serve] says whether the others are served, and which index to add.
package indexes

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

const keyProperty = "__key__"

// A Property is one of an index, in a direction.
type Property struct {
	Name       string
	Descending bool
}

// An Index is a composite index.
type Index struct {
	Kind       string
	Ancestor   bool
	Properties []Property
}

// String returns the index as lines of an index.yaml.
func (x Index) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "- kind: %s\n", quote(x.Kind))
	if x.Ancestor {
		b.WriteString("  ancestor: yes\n")
	}
	b.WriteString("  properties:\n")
	for _, p := range x.Properties {
		fmt.Fprintf(&b, "  - name: %s\n", quote(p.Name))
		if p.Descending {
			b.WriteString("    direction: desc\n")
		}
	}
	return b.String()
}

// quote writes a name so that YAML reads it as that.
func quote(name string) string {
	encoded, err := yaml.Marshal(name)
	if err != nil {
		return fmt.Sprintf("%q", name)
	}
	return strings.TrimSuffix(string(encoded), "\n")
}

// A Set is the indexes of a database. A nil set enforces nothing.
type Set struct{ all []Index }

// Parse reads the contents of an index.yaml.
func Parse(contents []byte) (*Set, error) {
	var file struct {
		Indexes []struct {
			Kind       string `yaml:"kind"`
			Ancestor   any    `yaml:"ancestor"` // yes and no are words to YAML 1.2, and booleans to index.yaml
			Properties []struct {
				Name      string `yaml:"name"`
				Direction string `yaml:"direction"`
				Mode      string `yaml:"mode"`
			} `yaml:"properties"`
		} `yaml:"indexes"`
	}
	d := yaml.NewDecoder(strings.NewReader(string(contents)))
	d.KnownFields(true)
	if err := d.Decode(&file); err != nil && !errors.Is(err, io.EOF) { // an empty file has no indexes
		return nil, fmt.Errorf("index.yaml: %w", err)
	}
	set := new(Set)
	for i, x := range file.Indexes {
		index := Index{Kind: x.Kind}
		switch x.Ancestor {
		case nil, false, "no":
		case true, "yes":
			index.Ancestor = true
		default:
			return nil, fmt.Errorf("index.yaml: index %d: ancestor is %v, it has to be yes or no", i+1, x.Ancestor)
		}
		if x.Kind == "" || len(x.Properties) == 0 {
			return nil, fmt.Errorf("index.yaml: index %d needs a kind and properties", i+1)
		}
		for _, p := range x.Properties {
			if p.Name == "" || p.Direction != "" && p.Direction != "asc" && p.Direction != "desc" || p.Mode != "" {
				return nil, fmt.Errorf("index.yaml: index %d: a property needs a name, and the direction asc or desc", i+1)
			}
			index.Properties = append(index.Properties, Property{p.Name, p.Direction == "desc"})
		}
		set.all = append(set.all, index)
	}
	return set, nil
}

// A Shape is what one conjunction of a query asks of an index.
type Shape struct {
	Kind     string
	Ancestor bool
	Equal    []string   // names of the properties of equalities, each once
	Orders   []Property // of inequalities, orders and projections, in that order
}

// needed returns the composite index that serves the shape by itself, if it needs
// one. What needs none: equalities and ancestors alone, with keys in ascending
// order, which are merged from the built-in indexes; and one property's order or
// inequality alone, which is one of them. Source: "Index definition and
// structure" in Datastore's documentation.
func (s Shape) needed() (Index, bool) {
	orders := s.orders()
	if len(orders) == 0 || len(orders) == 1 && len(s.Equal) == 0 && !s.Ancestor && orders[0].Name != keyProperty {
		return Index{}, false
	}
	index := Index{Kind: s.Kind, Ancestor: s.Ancestor}
	for _, name := range slices.Sorted(slices.Values(s.Equal)) {
		index.Properties = append(index.Properties, Property{Name: name})
	}
	index.Properties = append(index.Properties, orders...)
	return index, true
}

// orders leaves out what every index has at its end: keys in ascending order.
func (s Shape) orders() []Property {
	if n := len(s.Orders); n > 0 && s.Orders[n-1] == (Property{Name: keyProperty}) {
		return s.Orders[:n-1]
	}
	return s.Orders
}

// Serve reports whether the set serves a shape, and which index is missing if it
// does not. Several indexes serve it together if each ends with all of the
// orders, and begins with some of the equalities.
func (s *Set) Serve(shape Shape) (missing Index, ok bool) {
	needed, composite := shape.needed()
	if s == nil || !composite {
		return Index{}, true
	}
	orders := shape.orders()
	covered := make(map[string]bool)
	found := false
	for _, x := range s.all {
		n := len(x.Properties) - len(orders)
		if x.Kind != shape.Kind || x.Ancestor != shape.Ancestor || n < 0 || !slices.Equal(x.Properties[n:], orders) {
			continue
		}
		prefix := x.Properties[:n]
		if slices.ContainsFunc(prefix, func(p Property) bool { return !slices.Contains(shape.Equal, p.Name) }) {
			continue
		}
		found = true
		for _, p := range prefix {
			covered[p.Name] = true
		}
	}
	if found && len(covered) == len(shape.Equal) {
		return Index{}, true
	}
	return needed, false
}
