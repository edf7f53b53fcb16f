package conformance

import (
	"fmt"
	"math"
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

const ignoresTransforms = "the classic emulator ignores transforms"

// transforming returns a test case that applies one transform to the property v of an entity. The
// result shows the entity and the transform's result.
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
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_AppendMissingElements{
		AppendMissingElements: value(v).GetArrayValue()}}
}

func removeAll(v ...any) *pb.PropertyTransform {
	return &pb.PropertyTransform{TransformType: &pb.PropertyTransform_RemoveAllFromArray{
		RemoveAllFromArray: value(v).GetArrayValue()}}
}

func of(property string, t *pb.PropertyTransform) *pb.PropertyTransform {
	t.Property = property
	return t
}

func ignored(c conformanceCase) conformanceCase {
	c.classic = &difference{"*", ignoresTransforms}
	return c
}

// inside returns a nested entity with the given properties.
func inside(kv ...any) *pb.Value { return value(props(kv...)) }

// transformed returns a test case that commits several mutations of one entity. Each count is a
// mutation's number of transforms.
func transformed(counts ...int) func(*env) string {
	return func(e *env) string {
		var mutations []*pb.Mutation
		for _, n := range counts {
			m := upsert(e.name("K", "a"), nil)
			for i := range n {
				m.PropertyTransforms = append(m.PropertyTransforms, of(fmt.Sprintf("p%d", i), increment(1)))
			}
			mutations = append(mutations, m)
		}
		_, err := e.commitAtomically(mutations...)
		return outcome(err)
	}
}

var transformCases = []conformanceCase{
	ignored(conformanceCase{name: "increment", doc: "adds integers", run: transforming(5, increment(3)),
		want: "{v=8} 8"}),
	ignored(conformanceCase{name: "increment by a double", doc: "the sum is a double",
		run: transforming(5, increment(0.5)), want: "{v=5.5} 5.5"}),
	ignored(conformanceCase{name: "increment of what is no number", doc: "sets the operand",
		run: transforming("x", increment(3)), want: "{v=3} 3"}),
	ignored(conformanceCase{name: "increment of what is missing", doc: "sets the operand",
		run: transforming(5, of("w", increment(3))), want: "{v=5 w=3} 3"}),
	ignored(conformanceCase{name: "increment above 64 bits", doc: "stops at the greatest integer",
		run: transforming(math.MaxInt64-1, increment(5)), want: "{v=9223372036854775807} 9223372036854775807"}),
	ignored(conformanceCase{name: "increment by text", doc: "the operand is a number",
		run: transforming(5, increment("x")), want: "InvalidArgument"}),
	ignored(conformanceCase{name: "bad operand of what is missing", doc: "is refused before the entity is looked at",
		run: func(e *env) string {
			m := update(e.name("K", "none"), nil)
			m.PropertyTransforms = []*pb.PropertyTransform{of("v", increment("x"))}
			_, err := e.commit(m)
			return outcome(err)
		}, want: "InvalidArgument"}),
	ignored(conformanceCase{name: "maximum", doc: "the greater number", run: transforming(5, maximum(7)),
		want: "{v=7} 7"}),
	ignored(conformanceCase{name: "maximum of equals", doc: "keeps the property's type",
		run: transforming(5, maximum(5.0)), want: "{v=5} 5"}),
	ignored(conformanceCase{name: "maximum of mixed types", doc: "takes the type of the greater",
		run: transforming(5, maximum(5.5)), want: "{v=5.5} 5.5"}),
	ignored(conformanceCase{name: "minimum", doc: "the lesser number", run: transforming(5, minimum(7)),
		want: "{v=5} 5"}),
	ignored(conformanceCase{name: "minimum of what is no number", doc: "sets the operand",
		run: transforming(nil, minimum(7)), want: "{v=7} 7"}),
	ignored(conformanceCase{name: "append missing elements", doc: "each once, in order; 3 and 3.0 are equivalent",
		run: transforming([]any{1, 3}, appendMissing(3.0, 2, 2)), want: "{v=[1 3 2]} null"}),
	ignored(conformanceCase{name: "append to what is no array", doc: "takes it as an empty one",
		run: transforming("x", appendMissing(1)), want: "{v=[1]} null"}),
	ignored(conformanceCase{name: "append to nothing", doc: "makes an array",
		run: transforming(5, of("w", appendMissing("x"))), want: `{v=5 w=["x"]} null`}),
	ignored(conformanceCase{name: "remove all", doc: "removes all that are equivalent",
		run: transforming([]any{1, 3, 3.0, "x"}, removeAll(3, "y")), want: `{v=[1 "x"]} null`}),
	ignored(conformanceCase{name: "remove from what is no array", doc: "leaves an empty one",
		run: transforming("x", removeAll(3)), want: "{v=[]} null"}),
	ignored(conformanceCase{name: "nested", doc: "dots lead into entities",
		run: transforming(value(props("in", 1)), of("v.in", increment(1))), want: "{v={in=2}} 2"}),
	ignored(conformanceCase{name: "request time", doc: "sets the time of the request", run: func(e *env) string {
		m := upsert(e.name("K", "a"), nil)
		m.PropertyTransforms = []*pb.PropertyTransform{{Property: "t",
			TransformType: &pb.PropertyTransform_SetToServerValue{SetToServerValue: pb.PropertyTransform_REQUEST_TIME}}}
		resp, err := e.commit(m)
		if err != nil || len(resp.MutationResults[0].TransformResults) == 0 {
			return outcome(err)
		}
		if resp.MutationResults[0].TransformResults[0].GetTimestampValue().AsTime().IsZero() {
			return "no time"
		}
		return "time"
	}, want: "time"}),
	ignored(conformanceCase{name: "request time in milliseconds", doc: "has no more precision than milliseconds",
		run: func(e *env) string {
			for range 3 {
				m := upsert(e.name("K", "a"), nil)
				m.PropertyTransforms = []*pb.PropertyTransform{{Property: "t",
					TransformType: &pb.PropertyTransform_SetToServerValue{
						SetToServerValue: pb.PropertyTransform_REQUEST_TIME}}}
				resp, err := e.commit(m)
				if err != nil || len(resp.MutationResults[0].TransformResults) == 0 {
					return outcome(err)
				}
				if resp.MutationResults[0].TransformResults[0].GetTimestampValue().GetNanos()%1e6 != 0 {
					return "finer"
				}
			}
			return "milliseconds"
		}, want: "milliseconds"}),
	ignored(conformanceCase{name: "append an equal entity", doc: "entities are equivalent if what they hold is",
		run: transforming([]any{inside("a", []any{1, inside("b", 2)})},
			appendMissing(inside("a", []any{1.0, inside("b", unindexed(2))}))), want: "{v=[{a=[1 {b=2}]}]} null"}),
	ignored(conformanceCase{name: "append another entity", doc: "entities differ by one property",
		run:  transforming([]any{inside("a", 1)}, appendMissing(inside("a", 1, "b", nil))),
		want: "{v=[{a=1} {a=1 b=null}]} null"}),
	ignored(conformanceCase{name: "append an entity with a key", doc: "the key is a part of an entity",
		run: transforming([]any{inside("a", 1)},
			appendMissing(&pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{
				Key: &pb.Key{Path: []*pb.Key_PathElement{named("K", "x")}}, Properties: props("a", 1)}}})),
		want: "{v=[{a=1} {a=1}]} null"}),
	ignored(conformanceCase{name: "append a blob to texts", doc: "a text is no blob",
		run: transforming([]any{"ab"}, appendMissing([]byte("ab"))), want: `{v=["ab" blob 6162]} null`}),
	ignored(conformanceCase{name: "append an integer to times", doc: "a time is no integer",
		run:  transforming([]any{time.UnixMicro(5).UTC()}, appendMissing(5)),
		want: "{v=[1970-01-01T00:00:00.000005Z 5]} null"}),
	ignored(conformanceCase{name: "append 2^63", doc: "is more than the greatest integer",
		run:  transforming([]any{math.MaxInt64}, appendMissing(0x1p63)),
		want: "{v=[9223372036854775807 9223372036854775808.0]} null"}),
	ignored(conformanceCase{name: "append 2^53", doc: "is not 2^53+1",
		run:  transforming([]any{1<<53 + 1}, appendMissing(0x1p53)),
		want: "{v=[9007199254740993 9007199254740992.0]} null"}),
	ignored(conformanceCase{name: "remove an equal entity", doc: "entities are found like others",
		run: transforming([]any{inside("a", 1), 5}, removeAll(inside("a", 1))), want: "{v=[5]} null"}),
	ignored(conformanceCase{name: "remove a text", doc: "leaves the blob of its bytes",
		run: transforming([]any{"ab", []byte("ab")}, removeAll("ab")), want: "{v=[blob 6162]} null"}),
	ignored(conformanceCase{name: "remove an integer", doc: "leaves the time of its microseconds",
		run:  transforming([]any{time.UnixMicro(5).UTC(), 5}, removeAll(5)),
		want: "{v=[1970-01-01T00:00:00.000005Z]} null"}),
	ignored(conformanceCase{name: "maximum of 2^63", doc: "is more than the greatest integer",
		run: transforming(math.MaxInt64, maximum(0x1p63)), want: "{v=9223372036854775808.0} 9223372036854775808.0"}),
	ignored(conformanceCase{name: "maximum of 2^53+1", doc: "is more than 2^53",
		run: transforming(0x1p53, maximum(1<<53+1)), want: "{v=9007199254740993} 9007199254740993"}),
	ignored(conformanceCase{name: "minimum of 2^63", doc: "the greatest integer is less",
		run: transforming(0x1p63, minimum(math.MaxInt64)), want: "{v=9223372036854775807} 9223372036854775807"}),
	ignored(conformanceCase{name: "minimum of NaN", doc: "is NaN", run: transforming(5, minimum(math.NaN())),
		want: "{v=NaN} NaN"}),
	ignored(conformanceCase{name: "quoted name", doc: "backticks quote a name",
		run: transforming(1, of("`v`", increment(1))), want: "{v=2} 2"}),
	ignored(conformanceCase{name: "quoted dot", doc: "inside backticks a dot belongs to the name",
		run: transforming(inside("x.y", 1), of("v.`x.y`", increment(1))), want: "{v={x.y=2}} 2"}),
	ignored(conformanceCase{name: "quoted backtick", doc: "a backslash escapes it",
		run: transforming(1, of("`a\\`b`", increment(1))), want: "{a`b=1 v=1} 1"}),
	ignored(conformanceCase{name: "open backtick", doc: "is refused", run: transforming(1, of("`a", increment(1))),
		want: "InvalidArgument"}),
	ignored(conformanceCase{name: "behind a backtick", doc: "only a dot can follow",
		run: transforming(1, of("`a`b", increment(1))), want: "InvalidArgument"}),
	ignored(conformanceCase{name: "of an entity and its property", doc: "are refused: the documentation is silent",
		run: func(e *env) string {
			m := upsert(e.name("K", "a"), nil)
			m.PropertyTransforms = []*pb.PropertyTransform{of("v.x", increment(1)), of("v-w", increment(1)),
				of("`v`", increment(1))}
			_, err := e.commit(m)
			return outcome(err)
		}, want: "InvalidArgument"}),
	{name: "500 of an entity", doc: "are allowed", run: transformed(500), want: "OK"},
	func() conformanceCase {
		c := ignored(conformanceCase{name: "501 of an entity", doc: "a commit has at most 500 transforms of an entity",
			run: transformed(250, 251), want: "InvalidArgument"})
		c.firestore = &difference{"OK", lenient}
		return c
	}(),
	ignored(conformanceCase{name: "for delete", doc: "transforms are for insert, update and upsert",
		run: func(e *env) string {
			m := del(e)
			m.PropertyTransforms = []*pb.PropertyTransform{of("v", increment(1))}
			_, err := e.commit(m)
			return outcome(err)
		}, want: "InvalidArgument"}),
	ignored(conformanceCase{name: "without type", doc: "a transform has a type",
		run: transforming(5, new(pb.PropertyTransform)), want: "InvalidArgument"}),
}
