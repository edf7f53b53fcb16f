package prebuilt

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/mapper"
)

// CheckParams are the parameters of [Check].
type CheckParams struct {
	Condition string `json:"condition"` // as behind WHERE in GQL: balance >= 0 AND plan IN ARRAY('free', 'gold')
}

// check is Check, before it is known how it is started by its name.
var check = mapper.Visit("check", func(_ context.Context, e *mapper.Entity[entity], p CheckParams) error {
	c, err := conditionOf(p.Condition)
	if err != nil {
		return mapper.Permanent(err)
	}
	all := slices.Clone(e.Value)
	for i := range all {
		all[i].NoIndex = false
	}
	meets, err := meets(c, all)
	switch {
	case err != nil:
		return mapper.Permanent(err)
	case !meets:
		return mapper.Permanent(errDoesNotMeet)
	}
	e.Count("meets", 1)
	return nil
})

// Check is the mapper "check": it checks that entities meet a condition. Those that do not are failures of the job, which
// succeeds with failures then; the counter "meets" has the others. The condition is as behind WHERE in
// GQL, with AND, OR, != and NOT IN; an array meets it if one of its values does, and properties need not be indexed. It can't be about
// keys. A condition that can't be read is refused when the job starts. By default a job of it has no limit of failures.
var Check = check.ByName(startCheck)

var errDoesNotMeet = errors.New("the entity does not meet the condition")

// startCheck starts a check by its name.
func startCheck(ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage, o *mapper.StartOptions) (*mapper.Job, error) {
	var p CheckParams
	d := json.NewDecoder(bytes.NewReader(params))
	d.DisallowUnknownFields()
	err := d.Decode(&p)
	if err == nil {
		_, err = conditionOf(p.Condition)
	}
	if err != nil {
		return nil, fmt.Errorf("check: %w: %w", mapper.ErrArguments, err)
	}
	opts := mapper.StartOptions{}
	if o != nil {
		opts = *o
	}
	opts.FailureLimit = cmp.Or(opts.FailureLimit, -1) // so that each is recorded
	return check.Start(ctx, e, q, p, &opts)
}

// conditionOf parses a condition, and tries it.
func conditionOf(text string) (*pb.Filter, error) {
	c, err := gql.ParseCondition(text)
	if err == nil {
		_, err = meets(c, nil)
	}
	if err != nil {
		return nil, fmt.Errorf(`"condition" %q: %w`, text, err)
	}
	return c, nil
}

// meets reports whether an entity with some properties meets a condition.
func meets(c *pb.Filter, properties []datastore.Property) (bool, error) {
	f := c.GetPropertyFilter()
	if f == nil {
		return meetsAll(c.GetCompositeFilter(), properties)
	}
	name := f.GetProperty().GetName()
	value, err := gql.GoValue(f.Value)
	if err != nil {
		return false, err
	}
	switch f.Op {
	case pb.PropertyFilter_NOT_EQUAL:
		return differs(name, []any{value}, properties)
	case pb.PropertyFilter_NOT_IN:
		values, _ := value.([]any)
		return differs(name, values, properties)
	}
	if op := gql.Filters[f.Op]; op != "" {
		return mapper.Matches([]mapper.Filter{mapper.Where(name, op, value)}, properties)
	}
	return false, fmt.Errorf("a check can't have %s", f.Op)
}

// meetsAll reports whether an entity meets all of some conditions, or one of them. Of those on one property the same value has to
// satisfy all.
func meetsAll(c *pb.CompositeFilter, properties []datastore.Property) (bool, error) {
	var filters []mapper.Filter
	any := c.GetOp() == pb.CompositeFilter_OR
	result := !any
	for _, each := range c.GetFilters() {
		if f := each.GetPropertyFilter(); !any && f != nil && gql.Filters[f.Op] != "" {
			value, err := gql.GoValue(f.Value)
			if err != nil {
				return false, err
			}
			filters = append(filters, mapper.Where(f.GetProperty().GetName(), gql.Filters[f.Op], value))
			continue
		}
		met, err := meets(each, properties)
		if err != nil {
			return false, err
		}
		if any {
			result = result || met
		} else {
			result = result && met
		}
	}
	met, err := mapper.Matches(filters, properties)
	if any {
		return result, err
	}
	return result && met, err
}

// differs reports whether a property has a value that is none of some.
func differs(name string, values []any, properties []datastore.Property) (bool, error) {
	for _, v := range valuesOf(name, properties) {
		is, err := mapper.Matches([]mapper.Filter{mapper.Where("v", "in", values)}, []datastore.Property{{Name: "v", Value: v}})
		if err != nil || !is {
			return err == nil, err
		}
	}
	_, err := mapper.Matches([]mapper.Filter{mapper.Where(name, "in", values)}, nil)
	return false, err
}

// valuesOf returns the values of a property, whose name may lead into entities inside.
func valuesOf(name string, properties []datastore.Property) (all []any) {
	for _, p := range properties {
		values, ok := p.Value.([]any)
		if !ok {
			values = []any{p.Value}
		}
		inner, inside := strings.CutPrefix(name, p.Name+".")
		for _, v := range values {
			e, ok := v.(*datastore.Entity)
			switch {
			case p.Name == name:
				all = append(all, v)
			case inside && ok:
				all = append(all, valuesOf(inner, e.Properties)...)
			}
		}
	}
	return all
}
