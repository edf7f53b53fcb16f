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
				return nil, fmt.Errorf("index.yaml: index %d: a property needs a name, and the direction asc or desc",
					i+1)
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
	Orders   []Property // of inequalities and orders, in that order
	Rest     []Property // of a projection alone: an index may have them in any order and direction
}

// needed returns the composite index that serves the shape by itself, if it needs
// one. What needs none: equalities and ancestors alone, with keys in ascending
// order, which are merged from the built-in indexes; and one property's order or
// inequality alone, which is one of them. Source: "Index definition and
// structure" in Datastore's documentation.
func (s Shape) needed() (Index, bool) {
	orders := slices.Concat(s.orders(), s.Rest)
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

// builtIn returns the built-in indexes that serve a shape which needs no composite
// one: that of its order, those of its equalities, which are merged, or that of the
// keys, which has no properties.
func (s Shape) builtIn() []Index {
	properties := slices.Concat(s.orders(), s.Rest)
	for _, name := range slices.Sorted(slices.Values(s.Equal)) {
		properties = append(properties, Property{Name: name})
	}
	if len(properties) == 0 {
		return []Index{{Kind: s.Kind}}
	}
	var all []Index
	for _, p := range properties {
		all = append(all, Index{Kind: s.Kind, Properties: []Property{p}})
	}
	return all
}

// orders leaves out what every index has at its end: keys in ascending order.
func (s Shape) orders() []Property {
	if n := len(s.Orders); n > 0 && len(s.Rest) == 0 && s.Orders[n-1] == (Property{Name: keyProperty}) {
		return s.Orders[:n-1]
	}
	return s.Orders
}

// Serve returns the indexes that serve a shape, or the one that is missing.
// Several serve it together if each ends with the same orders, and begins with some
// of the equalities.
func (s *Set) Serve(shape Shape) (used []Index, missing *Index) {
	needed, composite := shape.needed()
	switch {
	case !composite:
		return shape.builtIn(), nil
	case s == nil:
		return []Index{needed}, nil
	}
	orders := shape.orders()
	for _, x := range s.all {
		if n := len(x.Properties) - len(orders) - len(shape.Rest); n >= 0 &&
			slices.Equal(x.Properties[n:n+len(orders)], orders) && permuted(x.Properties[n+len(orders):], shape.Rest) {
			if used := s.merged(shape, x.Properties[n:]); used != nil {
				return used, nil
			}
		}
	}
	return nil, &needed
}

// permuted reports whether properties are those of other, in whatever order and
// direction.
func permuted(properties, other []Property) bool {
	return len(properties) == len(other) && !slices.ContainsFunc(properties, func(p Property) bool {
		return !slices.ContainsFunc(other, func(o Property) bool { return o.Name == p.Name })
	})
}

// merged returns the indexes that end with these orders and have all of a shape's
// equalities together, or nil.
func (s *Set) merged(shape Shape, orders []Property) []Index {
	var used []Index
	covered := make(map[string]bool)
	for _, x := range s.all {
		n := len(x.Properties) - len(orders)
		if x.Kind != shape.Kind || x.Ancestor != shape.Ancestor || n < 0 || !slices.Equal(x.Properties[n:], orders) {
			continue
		}
		prefix := x.Properties[:n]
		if slices.ContainsFunc(prefix, func(p Property) bool { return !slices.Contains(shape.Equal, p.Name) }) {
			continue
		}
		if n == len(shape.Equal) {
			return []Index{x} // by itself
		}
		used = append(used, x)
		for _, p := range prefix {
			covered[p.Name] = true
		}
	}
	if len(covered) < len(shape.Equal) {
		return nil
	}
	return used
}
