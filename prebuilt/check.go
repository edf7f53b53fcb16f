package prebuilt

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
)

// CheckParams are the parameters of [Check].
type CheckParams struct {
	// the condition in GQL, such as balance >= 0 AND plan IN ARRAY('free', 'gold')
	Condition string `json:"condition"`
}

// Validate implements mapper.Validator.
func (p CheckParams) Validate() error {
	_, err := conditionOf(p.Condition)
	return err
}

// check is the mapper [Check] without its starter. It is a separate variable because startCheck
// uses it, and Check can't refer to itself.
var check = mapper.Visit("check", func(_ context.Context, e *mapper.Entity[entity], p CheckParams) error {
	c, err := conditionOf(p.Condition)
	if err != nil {
		return mapper.Permanent(err)
	}
	stored, err := read("check", e)
	if err != nil {
		return err
	}
	meets, failed := c.meets(stored)
	if meets {
		e.Count("meets", 1)
		return nil
	}
	if why := reason(failed); why != "" {
		return mapper.Permanent(fmt.Errorf("%w: %s", errDoesNotMeet, why))
	}
	return mapper.Permanent(errDoesNotMeet)
}).WithDescription("Records a failure for each entity that does not meet a condition. It changes nothing.")

// Check is the mapper "check". It checks that entities meet a condition. An entity that does not
// meet it is recorded as a failure. The counter "meets" counts the others. By default its jobs have
// no failure limit.
//
// The condition has the syntax of a GQL query after WHERE, with AND, OR, != and NOT IN. A start
// refuses a condition that can't be read. Properties need not be indexed. An array meets a
// condition if one of its values does. Conditions on keys are not possible.
//
// Comparisons may surprise:
//
//   - Values of different types are never equal, and an inequality holds only within a type. A
//     text, a float or null does not meet Balance >= 0, and the failure names both types. If floats
//     are allowed, write Balance >= 0 OR Balance >= 0.0.
//   - NaN meets no inequality.
//   - -0.0 is less than 0.0, as in Datastore's order. It does not meet Balance >= 0.0, and the
//     failure says so.
//   - Every value except null is greater than null.
var Check *mapper.Mapper[CheckParams] = check.WithStarter(startCheck).
	CheckByName(nil, func(params json.RawMessage) error { return mapper.CheckParams(params, new(CheckParams)) })

var errDoesNotMeet = errors.New("the entity does not meet the condition")

// startCheck is the starter of [Check]: it starts a job, by default without a failure limit.
func startCheck(
	ctx context.Context, e *mapper.Engine, q mapper.Query, params json.RawMessage, o *mapper.StartOptions,
) (*mapper.Job, error) {
	var p CheckParams
	if err := mapper.CheckParams(params, &p); err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	if q.KeysOnly {
		return nil, fmt.Errorf("check: %w: %w", mapper.ErrInvalidArgument, errKeysOnly)
	}
	opts := mapper.StartOptions{}
	if o != nil {
		opts = *o
	}
	opts.FailureLimit = cmp.Or(opts.FailureLimit, -1) // by default, record all failures
	return check.Start(ctx, e, q, p, &opts)
}

// A condition is a comparison of one property, or a combination of other conditions. If the field
// any of a combination is set, at least one of its conditions must hold. If not, all of them must
// hold.
type condition struct {
	any bool
	of  []condition

	property string
	each     []comparison // the comparisons; one value of the property must satisfy all of them
}

// A comparison compares a property's value with one or several values.
type comparison struct {
	op   pb.PropertyFilter_Operator
	with []any
}

// conditionOf parses the text of a condition.
func conditionOf(text string) (condition, error) {
	if text == "" {
		return condition{}, errors.New(`"condition" is missing: it is what follows WHERE in GQL, such as Balance >= 0`)
	}
	f, err := gql.ParseCondition(text)
	var c condition
	if err == nil {
		c, err = readCondition(f)
	}
	if err != nil {
		return condition{}, fmt.Errorf(`"condition" %q: %w`, text, err)
	}
	return c, nil
}

// readCondition converts a parsed GQL condition. Inequalities on one property that are joined by
// AND must hold for the same value of an array.
func readCondition(f *pb.Filter) (c condition, err error) {
	if f.GetPropertyFilter() != nil {
		return readProperty(f.GetPropertyFilter())
	}
	c.any = f.GetCompositeFilter().GetOp() == pb.CompositeFilter_OR
	for _, each := range f.GetCompositeFilter().GetFilters() {
		inner, err := readCondition(each)
		if err != nil {
			return c, err
		}
		same := slices.IndexFunc(c.of, func(o condition) bool {
			return !c.any && len(inner.each) > 0 && o.property == inner.property && o.ranges() && inner.ranges()
		})
		if same >= 0 {
			c.of[same].each = append(c.of[same].each, inner.each...)
			continue
		}
		c.of = append(c.of, inner)
	}
	return c, nil
}

func readProperty(f *pb.PropertyFilter) (c condition, err error) {
	c.property = f.GetProperty().GetName()
	v, err := gql.GoValue(f.Value)
	if err != nil {
		return c, err
	}
	with, op := []any{v}, gql.Filters[f.Op]
	switch {
	case f.Op == pb.PropertyFilter_NOT_EQUAL, f.Op == pb.PropertyFilter_NOT_IN:
		op = "in"
	case op == "":
		return c, fmt.Errorf("a check can't have %s", f.Op)
	}
	if list, ok := v.([]any); ok {
		with = list
	}
	filter := mapper.Where(c.property, op, v)
	if op == "in" {
		filter.Value = with
	}
	// Filters of queries have the same rules for values.
	if _, err := mapper.Matches([]mapper.Filter{filter}, nil); err != nil {
		return c, err
	}
	c.each = []comparison{{f.Op, with}}
	return c, nil
}

// ranges reports whether a condition on one property consists of inequalities.
func (c condition) ranges() bool {
	return len(c.each) > 0 && !slices.ContainsFunc(c.each, func(o comparison) bool { return !o.ranges() })
}

func (o comparison) ranges() bool {
	switch o.op {
	case pb.PropertyFilter_LESS_THAN, pb.PropertyFilter_LESS_THAN_OR_EQUAL, pb.PropertyFilter_GREATER_THAN,
		pb.PropertyFilter_GREATER_THAN_OR_EQUAL:
		return true
	}
	return false
}

// A failed is a comparison that a value of an entity does not satisfy.
type failed struct {
	property string
	at       int // the value's index, if the property is an array
	kind     failure
	why      string // the reason, without the value itself
}

type failure int

const (
	plainly  failure = iota // the value simply does not satisfy the comparison
	unasked                 // the value has another type, but that needs no explanation, such as null
	mistyped                // the value has another type than all values of the comparison
	oddly                   // the value is a special one, such as NaN
)

// reason returns a text that says why an entity does not meet a condition, if the condition alone
// does not explain it. It does not name the value's type if the condition also compares the
// property with a value of that type.
func reason(all []failed) string {
	why := ""
	for _, f := range all {
		compared := func(o failed) bool { return o.property == f.property && o.at == f.at && o.kind == plainly }
		switch {
		case f.kind == oddly:
			return fmt.Sprintf("%.200q %s", f.property, f.why)
		case f.kind == mistyped && why == "" && !slices.ContainsFunc(all, compared):
			why = fmt.Sprintf("%.200q %s", f.property, f.why)
		}
	}
	return why
}

// meets reports whether an entity meets a condition. If not, it also returns the comparisons that
// failed.
func (c condition) meets(e *pb.Entity) (meets bool, all []failed) {
	if len(c.each) > 0 {
		for i, v := range value.Of(e, c.property) {
			f := c.fails(v)
			if f == nil {
				return true, nil
			}
			f.property, f.at = c.property, i
			all = append(all, *f)
		}
		return false, all
	}
	for _, each := range c.of {
		is, more := each.meets(e)
		switch {
		case is && c.any:
			return true, nil
		case !is && !c.any:
			return false, more
		}
		all = append(all, more...)
	}
	return !c.any, all
}

// fails returns the first of the condition's comparisons that a value does not satisfy, or nil.
func (c condition) fails(v any) *failed {
	for _, o := range c.each {
		if holds, kind, why := o.holds(v); !holds {
			return &failed{kind: kind, why: why}
		}
	}
	return nil
}

// holds reports whether a value satisfies a comparison. If not, it also returns the reason.
func (o comparison) holds(v any) (holds bool, kind failure, why string) {
	differs := o.op == pb.PropertyFilter_NOT_EQUAL || o.op == pb.PropertyFilter_NOT_IN
	typed, null := false, false // whether the comparison has a value of v's type, and whether it has null
	f, float := v.(float64)
	for _, w := range o.with {
		switch {
		case value.Type(v) == value.Type(w):
			typed = true
		case w == nil && o.ranges(): // null is less than every other value
			null = true
		default:
			continue
		}
		c := value.Compare(v, w)
		if differs && c == 0 {
			return false, plainly, ""
		}
		holds = holds || o.is(c)
		if c != 0 && !o.is(c) && o.is(0) && equalFloats(v, w) {
			kind, why = oddly, zeros(v, w, c)
		}
	}
	switch {
	case float && f != f && o.ranges() && typed:
		return false, oddly, "is NaN, which is neither above nor below anything"
	case differs, holds:
		return true, plainly, ""
	case !typed:
		kind, why = o.untyped(v, null)
	}
	return false, kind, why
}

// untyped returns why v does not satisfy a comparison that has no value of v's type. The parameter
// null says that the comparison is an inequality with null.
func (o comparison) untyped(v any, null bool) (kind failure, why string) {
	if null || !o.ranges() && (v == nil || o.with[0] == nil) {
		return unasked, ""
	}
	return mistyped, fmt.Sprintf("is of the type %s, and is compared with the type %s", value.Type(v),
		value.Type(o.with[0]))
}

func equalFloats(v, w any) bool {
	f, float := v.(float64)
	g, both := w.(float64)
	return float && both && f == g
}

// zeros returns a text that explains a comparison of 0 with -0. The parameter order is negative if
// v is less than w in Datastore's order. That order distinguishes them, but Go and GQL users do not
// expect it.
func zeros(v, w any, order int) string {
	where := "above"
	if order < 0 {
		where = "below"
	}
	return fmt.Sprintf("is %s, which is %s %s and not equal to it, as Datastore orders floats", value.Text(v), where,
		value.Text(w))
}

// is reports whether a value satisfies the comparison. The argument c is the result of
// value.Compare for this value and a value of the comparison.
func (o comparison) is(c int) bool {
	switch o.op {
	case pb.PropertyFilter_EQUAL, pb.PropertyFilter_IN:
		return c == 0
	case pb.PropertyFilter_LESS_THAN:
		return c < 0
	case pb.PropertyFilter_LESS_THAN_OR_EQUAL:
		return c <= 0
	case pb.PropertyFilter_GREATER_THAN:
		return c > 0
	case pb.PropertyFilter_GREATER_THAN_OR_EQUAL:
		return c >= 0
	}
	return false
}
