package conformance

import (
	"math"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

const ignoresTransforms = "the classic emulator ignores transforms"

// transforming applies one transform to the property v of an entity, and shows the
// entity and the transform's result.
func transforming(before any, t *pb.PropertyTransform) func(*env) string {
	return func(e *env) string {
		e.put("K", "a", "v", before)
		m := update(e.name("K", "a"), props("v", before))
		if t.Property == "" {
			t.Property = "v"
		}
		m.PropertyTransforms = []*pb.PropertyTransform{t}
		resp, err := e.commit(m)
		if err != nil {
			return outcome(err)
		}
		var results []string
		for _, r := range resp.MutationResults[0].TransformResults {
			results = append(results, show(r))
		}
		return e.get("K", "a") + " " + strings.Join(results, " ")
	}
}

func increment(v any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_Increment{Increment: value(v)}}
}

func maximum(v any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_Maximum{Maximum: value(v)}}
}

func minimum(v any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_Minimum{Minimum: value(v)}}
}

func appendMissing(v ...any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_AppendMissingElements{AppendMissingElements: value(v).GetArrayValue()}}
}

func removeAll(v ...any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_RemoveAllFromArray{RemoveAllFromArray: value(v).GetArrayValue()}}
}

func of(property string, t *pb.PropertyTransform) *pb.PropertyTransform {
	t.Property = property
	return t
}

func ignored(c conformanceCase) conformanceCase {
	c.classic = &difference{"*", ignoresTransforms}
	return c
}

var transformCases = []conformanceCase{
	ignored(conformanceCase{name: "increment", doc: "adds integers", run: transforming(5, increment(3)), want: "{v=8} 8"}),
	ignored(conformanceCase{name: "increment by a double", doc: "the sum is a double", run: transforming(5, increment(0.5)), want: "{v=5.5} 5.5"}),
	ignored(conformanceCase{name: "increment of what is no number", doc: "sets the operand", run: transforming("x", increment(3)), want: "{v=3} 3"}),
	ignored(conformanceCase{name: "increment of what is missing", doc: "sets the operand", run: transforming(5, of("w", increment(3))), want: "{v=5 w=3} 3"}),
	ignored(conformanceCase{name: "increment above 64 bits", doc: "stops at the greatest integer", run: transforming(math.MaxInt64-1, increment(5)), want: "{v=9223372036854775807} 9223372036854775807"}),
	ignored(conformanceCase{name: "increment by text", doc: "the operand is a number", run: transforming(5, increment("x")), want: "InvalidArgument"}),
	ignored(conformanceCase{name: "maximum", doc: "the greater number", run: transforming(5, maximum(7)), want: "{v=7} 7"}),
	ignored(conformanceCase{name: "maximum of equals", doc: "keeps the property's type", run: transforming(5, maximum(5.0)), want: "{v=5} 5"}),
	ignored(conformanceCase{name: "maximum of mixed types", doc: "takes the type of the greater", run: transforming(5, maximum(5.5)), want: "{v=5.5} 5.5"}),
	ignored(conformanceCase{name: "minimum", doc: "the lesser number", run: transforming(5, minimum(7)), want: "{v=5} 5"}),
	ignored(conformanceCase{name: "minimum of what is no number", doc: "sets the operand", run: transforming(nil, minimum(7)), want: "{v=7} 7"}),
	ignored(conformanceCase{name: "append missing elements", doc: "each once, in order; 3 and 3.0 are equivalent", run: transforming([]any{1, 3}, appendMissing(3.0, 2, 2)), want: "{v=[1 3 2]} null"}),
	ignored(conformanceCase{name: "append to what is no array", doc: "takes it as an empty one", run: transforming("x", appendMissing(1)), want: "{v=[1]} null"}),
	ignored(conformanceCase{name: "append to nothing", doc: "makes an array", run: transforming(5, of("w", appendMissing("x"))), want: `{v=5 w=["x"]} null`}),
	ignored(conformanceCase{name: "remove all", doc: "removes all that are equivalent", run: transforming([]any{1, 3, 3.0, "x"}, removeAll(3, "y")), want: `{v=[1 "x"]} null`}),
	ignored(conformanceCase{name: "remove from what is no array", doc: "leaves an empty one", run: transforming("x", removeAll(3)), want: "{v=[]} null"}),
	ignored(conformanceCase{name: "nested", doc: "dots lead into entities", run: transforming(value(props("in", 1)), of("v.in", increment(1))), want: "{v={in=2}} 2"}),
	ignored(conformanceCase{name: "request time", doc: "sets the time of the request", run: func(e *env) string {
		m := upsert(e.name("K", "a"), nil)
		m.PropertyTransforms = []*pb.PropertyTransform{{Property: "t", TransformType: &pb.PropertyTransform_SetToServerValue{SetToServerValue: pb.PropertyTransform_REQUEST_TIME}}}
		resp, err := e.commit(m)
		if err != nil || len(resp.MutationResults[0].TransformResults) == 0 {
			return outcome(err)
		}
		if resp.MutationResults[0].TransformResults[0].GetTimestampValue().AsTime().IsZero() {
			return "no time"
		}
		return "time"
	}, want: "time"}),
	ignored(conformanceCase{name: "for delete", doc: "transforms are for insert, update and upsert", run: func(e *env) string {
		m := del(e)
		m.PropertyTransforms = []*pb.PropertyTransform{of("v", increment(1))}
		_, err := e.commit(m)
		return outcome(err)
	}, want: "InvalidArgument"}),
	ignored(conformanceCase{name: "without type", doc: "a transform has a type", run: transforming(5, new(pb.PropertyTransform)), want: "InvalidArgument"}),
}
