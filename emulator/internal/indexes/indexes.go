// Package indexes decides which composite indexes a query needs.
//
// A [Set] has the indexes of an index.yaml. A [Shape] describes the index that a query needs: the
// properties of its equalities, and then its orders. Many shapes need no composite index. For the
// others [Set.Serve] says whether an index serves them, and which index is missing.
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

// A Property is a property in an index, with a direction.
type Property struct {
	Name       string
	Descending bool
}

// An Index is a composite index over the entities of a kind.
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

// quote returns a name in the form in which YAML reads it as the same name.
func quote(name string) string {
	encoded, err := yaml.Marshal(name)
	if err != nil {
		return fmt.Sprintf("%q", name)
	}
	return strings.TrimSuffix(string(encoded), "\n")
}

// A Set has the composite indexes of a database. A nil Set serves every query.
type Set struct{ all []Index }

// Parse reads the contents of an index.yaml.
func Parse(contents []byte) (*Set, error) {
	var file struct {
		Indexes []struct {
			Kind       string `yaml:"kind"`
			Ancestor   any    `yaml:"ancestor"` // yes and no are words in YAML 1.2, and booleans in index.yaml
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

// A Shape describes the index that one conjunction of a query needs.
type Shape struct {
	Kind     string
	Ancestor bool
	Equal    []string   // the properties of equalities, each once
	Orders   []Property // the properties of inequalities and orders, in that order
	Rest     []Property // properties that are only projected: their order and direction do not matter
}

// needed returns the composite index that alone serves the shape. It returns false if the shape
// needs none. Two kinds of shapes need none. Equalities and ancestors with keys in ascending order
// are merged from the built-in indexes. One property's order or inequality is a built-in index.
// Source: "Index definition and structure" in Datastore's documentation.
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

// builtIn returns the built-in indexes that serve a shape which needs no composite one. These are
// the index of its order, or the merged indexes of its equalities, or the index of keys, which has
// no properties.
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

// orders returns the orders without ascending keys at the end. Every index ends with these anyway.
func (s Shape) orders() []Property {
	if n := len(s.Orders); n > 0 && len(s.Rest) == 0 && s.Orders[n-1] == (Property{Name: keyProperty}) {
		return s.Orders[:n-1]
	}
	return s.Orders
}

// Serve returns the indexes that serve a shape, or else the missing one. Several indexes serve it
// together if each ends with the same orders, and starts with some of the equalities.
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

// permuted reports whether two lists have the same properties, in any order and direction.
func permuted(properties, other []Property) bool {
	return len(properties) == len(other) && !slices.ContainsFunc(properties, func(p Property) bool {
		return !slices.ContainsFunc(other, func(o Property) bool { return o.Name == p.Name })
	})
}

// merged returns indexes that end with the given orders, and together have all equalities of a
// shape. It returns nil if there are none.
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
			return []Index{x} // alone
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
