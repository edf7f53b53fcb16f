package gql

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/names"
)

// bindings has the values that a request gives for the binding sites of its query. A binding site
// is a placeholder such as @name or @1.
type bindings struct {
	named      map[string]*pb.GqlQueryParameter
	positional []*pb.GqlQueryParameter
	used       []bool // whether the query has used each positional binding
}

// bindingName matches valid names of bindings. Datastore documents this form for the keys of
// named_bindings.
var bindingName = regexp.MustCompile(`^[A-Za-z_$][A-Za-z_$0-9]*$`)

func reservedBinding(name string) bool { return names.Reserved(name) }

// newBindings returns the bindings of a query. It returns an error if one of them is invalid, even
// if the query does not use it.
func newBindings(q *pb.GqlQuery) (*bindings, error) {
	b := &bindings{
		named:      q.GetNamedBindings(),
		positional: q.GetPositionalBindings(),
		used:       make([]bool, len(q.GetPositionalBindings())),
	}
	// Sorted, so that a query with several errors always gives the same error.
	for _, name := range slices.Sorted(maps.Keys(b.named)) {
		switch {
		case !bindingName.MatchString(name):
			return nil, fmt.Errorf("GQL binding %s: its name does not match %s", show(name), bindingName)
		case reservedBinding(name):
			return nil, fmt.Errorf("GQL binding %s: names with two underscores at both ends are reserved", show(name))
		}
		if err := checkParameter(b.named[name]); err != nil {
			return nil, fmt.Errorf("GQL binding %s %w", show(name), err)
		}
	}
	for i, parameter := range b.positional {
		if err := checkParameter(parameter); err != nil {
			return nil, fmt.Errorf("GQL binding %d %w", i+1, err)
		}
	}
	return b, nil
}

func checkParameter(parameter *pb.GqlQueryParameter) error {
	switch bound := parameter.GetParameterType().(type) {
	case *pb.GqlQueryParameter_Cursor:
		return nil
	case *pb.GqlQueryParameter_Value:
		if bound.Value.GetValueType() == nil {
			return fmt.Errorf("holds a value without a type")
		}
		return nil
	default:
		return fmt.Errorf("holds neither a value nor a cursor")
	}
}

// unused returns an error if the query does not use a positional binding. Named bindings may stay
// unused, as Datastore documents.
func (b *bindings) unused() error {
	if i := slices.Index(b.used, false); i >= 0 {
		return fmt.Errorf("GQL binding %d is not used: the query has no @%d", i+1, i+1)
	}
	return nil
}

// parameter returns the binding for a token such as @1 or @name of the query: a value or a cursor.
func (p *parser) parameter(t token) (*pb.GqlQueryParameter, error) {
	b := p.bindings
	if t.kind == named {
		parameter, ok := b.named[t.value]
		if !ok {
			return nil, p.errorAt(t, "nothing is bound to %s", t)
		}
		return parameter, nil
	}
	n, err := strconv.Atoi(t.value)
	if err == nil && n == 0 {
		return nil, p.errorAt(t, "positional bindings count from @1")
	}
	if err != nil || n > len(b.positional) {
		return nil, p.errorAt(t, "nothing is bound to %s: positional bindings: %d", t, len(b.positional))
	}
	b.used[n-1] = true
	return b.positional[n-1], nil
}

// boundValue returns the value that is bound to a token such as @name. It returns an error if the
// binding is a cursor.
func (p *parser) boundValue(t token) (*pb.Value, error) {
	parameter, err := p.parameter(t)
	if err != nil {
		return nil, err
	}
	if parameter.GetValue() == nil {
		return nil, p.errorAt(t, "expected a value, but %s is bound to a cursor", t)
	}
	return parameter.GetValue(), nil
}
