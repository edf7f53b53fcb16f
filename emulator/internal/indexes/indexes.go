// Package indexes decides which composite indexes a query needs.
//
// A [Set] has the composite indexes of an index.yaml. A [Shape] describes a query: the properties
// that it compares for equality, and its orders. Many shapes need no composite index. For the
// others, [Set.Serve] returns the indexes that serve the shape, or the missing index.
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

// A Property is a property in an index, with its direction.
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

// String returns the index as an entry of an index.yaml.
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

// quote quotes a name for YAML if YAML would otherwise read it as something else.
func quote(name string) string {
	encoded, err := yaml.Marshal(name)
	if err != nil {
		return fmt.Sprintf("%q", name)
	}
	return strings.TrimSuffix(string(encoded), "\n")
}

// A Set has the composite indexes of a database. If it is nil, no query is refused for want of an
// index.
type Set struct{ all []Index }

// Parse reads the contents of an index.yaml.
func Parse(contents []byte) (*Set, error) {
	var file struct {
		Indexes []struct {
			Kind       string `yaml:"kind"`
			Ancestor   any    `yaml:"ancestor"` // index.yaml may say yes and no, which are texts in YAML 1.2
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

// A Shape describes which properties an index must have to serve one conjunction of a query.
type Shape struct {
	Kind     string
	Ancestor bool
	Equal    []string   // the properties that are compared for equality, each once
	Orders   []Property // the properties of inequalities and orders, in that order
	Rest     []Property // properties that are only projected; they may have any order and direction in the index
}

// needed returns the composite index that serves the shape alone. It returns false if the shape
// needs no composite index, because built-in indexes serve it. This is so in two cases:
//
//   - The shape has only equalities and an ancestor, and its only order is ascending keys.
//   - The shape has only an order or an inequality on one property.
//
// The source is "Index definition and structure" in Datastore's documentation.
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

// builtIn returns the built-in indexes that serve a shape without a composite index. These are the
// index of its order, or the indexes of its equalities, or else the index of keys.
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

// orders returns the shape's orders, without ascending keys at the end. Every index ends with
// ascending keys anyway.
func (s Shape) orders() []Property {
	if n := len(s.Orders); n > 0 && len(s.Rest) == 0 && s.Orders[n-1] == (Property{Name: keyProperty}) {
		return s.Orders[:n-1]
	}
	return s.Orders
}

// Serve returns the indexes that serve a shape. If there are none, it returns the missing index.
// Several indexes serve a shape together if they end with the same orders, and each starts with
// some of the equalities.
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

// permuted reports whether two lists have the same properties. Their order and directions may
// differ.
func permuted(properties, other []Property) bool {
	return len(properties) == len(other) && !slices.ContainsFunc(properties, func(p Property) bool {
		return !slices.ContainsFunc(other, func(o Property) bool { return o.Name == p.Name })
	})
}

// merged returns indexes that serve the shape together. Each of them ends with the given orders,
// and has only properties of the shape's equalities before these. If one of the equalities is in
// none of the indexes, merged returns nil.
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
			return []Index{x} // this index is enough
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
