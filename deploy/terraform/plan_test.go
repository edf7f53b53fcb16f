package terraform_test

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/ext/typeexpr"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// A plan is what Terraform would plan for the module with some values of its variables. It has each
// instance of a resource with its arguments. The test makes up the values that the provider would
// compute, such as an account's e-mail address.
type plan struct {
	r         *reader
	schemas   map[string]*schema
	variables map[string]cty.Value
	locals    map[string]cty.Value
	resources map[string]cty.Value   // by address, such as google_service_account.tasks
	instances map[string][]cty.Value // by type of resource; blocks are tuples of objects
	outputs   map[string]cty.Value
	refused   []string // the messages of validations and preconditions that have failed
	under     []string // addresses that are being evaluated, to find cycles
}

// planOf plans the module with the given variables. Their values are expressions in HCL.
func planOf(t *testing.T, variables map[string]string) *plan {
	t.Helper()
	p, err := planModule(t, read(t, "."), variables)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func planModule(t *testing.T, m module, variables map[string]string) (*plan, error) {
	t.Helper()
	p := &plan{
		r:         check(t, m, nil),
		schemas:   schemas(t),
		variables: map[string]cty.Value{},
		locals:    map[string]cty.Value{},
		resources: map[string]cty.Value{},
		instances: map[string][]cty.Value{},
		outputs:   map[string]cty.Value{},
	}
	given := map[string]string{
		"project":   `"my-project"`,
		"region":    `"europe-west1"`,
		"image":     `"image"`,
		"operators": `["ann@example.com"]`,
	}
	maps.Copy(given, variables)
	return p, p.run(given)
}

func (p *plan) run(given map[string]string) error {
	for _, b := range p.r.blocks {
		if b.Type != "variable" {
			continue
		}
		name := b.Labels[0]
		typ, diagnostics := typeexpr.TypeConstraint(b.Body.Attributes["type"].Expr)
		if diagnostics.HasErrors() {
			return diagnostics
		}
		var expr hclsyntax.Expression
		if text, ok := given[name]; ok {
			expr, diagnostics = hclsyntax.ParseExpression([]byte(text), name, hcl.InitialPos)
			if diagnostics.HasErrors() {
				return diagnostics
			}
		} else if a := b.Body.Attributes["default"]; a != nil {
			expr = a.Expr
		} else {
			return fmt.Errorf("there is no variable %s", name)
		}
		delete(given, name)
		v, diagnostics := expr.Value(nil)
		if diagnostics.HasErrors() {
			return diagnostics
		}
		var err error
		if p.variables[name], err = convert.Convert(v, typ); err != nil {
			return fmt.Errorf("variable %s: %w", name, err)
		}
	}
	for name := range given {
		return fmt.Errorf("the module has no variable %s", name)
	}
	for _, b := range p.r.blocks {
		switch b.Type {
		case "variable":
			if err := p.conditions(b.Body, "validation", nil); err != nil {
				return err
			}
		case "data", "resource":
			if _, err := p.resource(b); err != nil {
				return err
			}
			for _, inner := range b.Body.Blocks {
				if inner.Type == "lifecycle" {
					if err := p.conditions(inner.Body, "precondition", nil); err != nil {
						return err
					}
				}
			}
		case "output":
			v, err := p.value(b.Body.Attributes["value"].Expr, nil)
			if err != nil {
				return fmt.Errorf("output %s: %w", b.Labels[0], err)
			}
			p.outputs[b.Labels[0]] = v
		}
	}
	return nil
}

// conditions evaluates the conditions in all blocks with a name, such as validation. For each
// condition that is false it records the block's error message.
func (p *plan) conditions(body *hclsyntax.Body, name string, more map[string]cty.Value) error {
	for _, b := range body.Blocks {
		if b.Type != name {
			continue
		}
		ok, err := p.value(b.Body.Attributes["condition"].Expr, more)
		if err != nil {
			return err
		}
		if ok.False() {
			p.refused = append(p.refused, literal(b.Body.Attributes["error_message"]))
		}
	}
	return nil
}

// value evaluates an expression. The map more has names that are known only there, such as each.
func (p *plan) value(expr hcl.Expression, more map[string]cty.Value) (cty.Value, error) {
	roots := map[string]map[string]cty.Value{"var": p.variables, "local": {}, "data": {}}
	data := map[string]map[string]cty.Value{}
	for _, v := range expr.Variables() {
		root := v.RootName()
		if _, ok := more[root]; ok || root == "var" || root == "path" {
			continue
		}
		step := func(i int) string {
			if i < len(v) {
				if a, ok := v[i].(hcl.TraverseAttr); ok {
					return a.Name
				}
			}
			return ""
		}
		var err error
		switch {
		case root == "local":
			roots["local"][step(1)], err = p.local(step(1))
		case root == "data":
			if data[step(1)] == nil {
				data[step(1)] = map[string]cty.Value{}
			}
			data[step(1)][step(2)], err = p.resource(p.r.declared["data."+step(1)+"."+step(2)])
		case p.r.declared[root+"."+step(1)] != nil:
			if roots[root] == nil {
				roots[root] = map[string]cty.Value{}
			}
			roots[root][step(1)], err = p.resource(p.r.declared[root+"."+step(1)])
		}
		if err != nil {
			return cty.NilVal, err
		}
	}
	for typ, names := range data {
		roots["data"][typ] = cty.ObjectVal(names)
	}
	all := map[string]cty.Value{"path": cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(".")})}
	for root, names := range roots {
		all[root] = cty.ObjectVal(names)
	}
	maps.Copy(all, more)
	v, diagnostics := expr.Value(&hcl.EvalContext{Variables: all, Functions: functions})
	if diagnostics.HasErrors() {
		return cty.NilVal, diagnostics
	}
	return v, nil
}

func (p *plan) enter(what string) (leave func(), err error) {
	if slices.Contains(p.under, what) {
		return nil, fmt.Errorf("%s depends on itself: %v", what, p.under)
	}
	p.under = append(p.under, what)
	return func() { p.under = p.under[:len(p.under)-1] }, nil
}

func (p *plan) local(name string) (cty.Value, error) {
	if v, ok := p.locals[name]; ok {
		return v, nil
	}
	leave, err := p.enter("local." + name)
	if err != nil {
		return cty.NilVal, err
	}
	defer leave()
	v, err := p.value(p.r.locals[name].Expr, nil)
	if err != nil {
		return v, fmt.Errorf("local.%s: %w", name, err)
	}
	p.locals[name] = v
	return v, nil
}

// resource evaluates a resource. With count the result is a tuple of instances, and with for_each
// an object of instances. Otherwise it is one instance.
func (p *plan) resource(b *hclsyntax.Block) (cty.Value, error) {
	address := strings.Join(b.Labels, ".")
	if b.Type == "data" {
		address = "data." + address
	}
	if v, ok := p.resources[address]; ok {
		return v, nil
	}
	leave, err := p.enter(address)
	if err != nil {
		return cty.NilVal, err
	}
	defer leave()
	s := p.schemas[b.Type+" "+b.Labels[0]]
	if s == nil {
		s = new(schema)
	}
	instance := func(more map[string]cty.Value) (cty.Value, error) {
		v, err := p.body(b.Body, more, true)
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s: %w", address, err)
		}
		p.instances[b.Labels[0]] = append(p.instances[b.Labels[0]], cty.ObjectVal(v))
		return computed(b.Labels[0], address, s, v), nil
	}
	var v cty.Value
	switch {
	case b.Body.Attributes["for_each"] != nil:
		all, err := p.value(b.Body.Attributes["for_each"].Expr, nil)
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s: %w", address, err)
		}
		instances := map[string]cty.Value{}
		for it := all.ElementIterator(); it.Next(); {
			key, value := it.Element()
			if all.Type().IsTupleType() || all.Type().IsListType() {
				return cty.NilVal, fmt.Errorf("%s: for_each takes a set or a map", address)
			}
			each := cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
			if instances[key.AsString()], err = instance(map[string]cty.Value{"each": each}); err != nil {
				return cty.NilVal, err
			}
		}
		v = cty.ObjectVal(instances)
	case b.Body.Attributes["count"] != nil:
		n, err := p.value(b.Body.Attributes["count"].Expr, nil)
		if err != nil {
			return cty.NilVal, fmt.Errorf("%s: %w", address, err)
		}
		instances := []cty.Value{}
		for i := range number(n) {
			one, err := instance(
				map[string]cty.Value{"count": cty.ObjectVal(map[string]cty.Value{"index": cty.NumberIntVal(int64(i))})},
			)
			if err != nil {
				return cty.NilVal, err
			}
			instances = append(instances, one)
		}
		v = cty.TupleVal(instances)
	default:
		if v, err = instance(nil); err != nil {
			return cty.NilVal, err
		}
	}
	p.resources[address] = v
	return v, nil
}

// body evaluates the arguments and blocks in the body of a resource or block.
func (p *plan) body(body *hclsyntax.Body, more map[string]cty.Value, outmost bool) (map[string]cty.Value, error) {
	all := make(map[string]cty.Value)
	for name, a := range body.Attributes {
		if outmost && slices.Contains(metaArguments, name) {
			continue
		}
		v, err := p.value(a.Expr, more)
		if err != nil {
			return nil, err
		}
		all[name] = v
	}
	blocks := make(map[string][]cty.Value)
	for _, b := range body.Blocks {
		if outmost && b.Type == "lifecycle" {
			continue
		}
		if b.Type != "dynamic" {
			v, err := p.body(b.Body, more, false)
			if err != nil {
				return nil, err
			}
			blocks[b.Type] = append(blocks[b.Type], cty.ObjectVal(v))
			continue
		}
		each, err := p.value(b.Body.Attributes["for_each"].Expr, more)
		if err != nil {
			return nil, err
		}
		for it := each.ElementIterator(); it.Next(); {
			key, value := it.Element()
			inner := maps.Clone(more)
			if inner == nil {
				inner = map[string]cty.Value{}
			}
			inner[b.Labels[0]] = cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
			v, err := p.body(b.Body.Blocks[0].Body, inner, false)
			if err != nil {
				return nil, err
			}
			blocks[b.Labels[0]] = append(blocks[b.Labels[0]], cty.ObjectVal(v))
		}
	}
	for name, list := range blocks {
		all[name] = cty.TupleVal(list)
	}
	return all, nil
}

// computed adds values to a resource's arguments for the attributes that the provider would
// compute.
func computed(typ, address string, s *schema, given map[string]cty.Value) cty.Value {
	all := maps.Clone(given)
	text := func(name string) string { return all[name].AsString() }
	for name, a := range s.attributes {
		if _, ok := all[name]; !ok {
			all[name] = cty.StringVal(address + "." + name)
			if a.kind != "string" {
				delete(all, name)
			}
		}
	}
	switch typ {
	case "google_project":
		all["number"] = cty.StringVal("123456789012")
	case "google_service_account":
		email := text("account_id") + "@" + text("project") + ".iam.gserviceaccount.com"
		all["email"], all["member"] = cty.StringVal(email), cty.StringVal("serviceAccount:"+email)
		all["name"] = cty.StringVal("projects/" + text("project") + "/serviceAccounts/" + email)
	case "google_cloud_tasks_queue":
		all["id"] = cty.StringVal(
			"projects/" + text("project") + "/locations/" + text("location") + "/queues/" + text("name"),
		)
	case "google_monitoring_notification_channel":
		all["name"] = cty.StringVal("projects/" + text("project") + "/notificationChannels/1")
	}
	return cty.ObjectVal(all)
}

// functions are the functions of Terraform that the module calls.
var functions = map[string]function.Function{
	"can": tryfunc.CanFunc, "ceil": stdlib.CeilFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
	"distinct": stdlib.DistinctFunc, "floor": stdlib.FloorFunc, "join": stdlib.JoinFunc,
	"jsonencode": stdlib.JSONEncodeFunc,
	"length":     stdlib.LengthFunc, "max": stdlib.MaxFunc, "merge": stdlib.MergeFunc, "min": stdlib.MinFunc,
	"regex": stdlib.RegexFunc, "replace": stdlib.ReplaceFunc, "slice": stdlib.SliceFunc,
	"tostring": stdlib.MakeToFunc(cty.String), "toset": stdlib.MakeToFunc(cty.Set(cty.DynamicPseudoType)),
	"alltrue": function.New(&function.Spec{
		Params: []function.Parameter{
			{Name: "list", Type: cty.List(cty.Bool)},
		}, Type: function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(!slices.ContainsFunc(args[0].AsValueSlice(), cty.Value.False)), nil
		},
	}),
	"endswith": function.New(&function.Spec{
		Params: []function.Parameter{
			{Name: "text", Type: cty.String},
			{Name: "end", Type: cty.String},
		}, Type: function.StaticReturnType(cty.Bool),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			return cty.BoolVal(strings.HasSuffix(args[0].AsString(), args[1].AsString())), nil
		},
	}),
	"file": function.New(&function.Spec{
		Params: []function.Parameter{{Name: "path", Type: cty.String}}, Type: function.StaticReturnType(cty.String),
		Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
			b, err := os.ReadFile(filepath.Clean(args[0].AsString()))
			return cty.StringVal(string(b)), err
		},
	}),
}

func number(v cty.Value) int {
	n, _ := v.AsBigFloat().Int64()
	return int(n)
}

// at returns the value at a path of names and indexes inside v, or nil.
func at(v cty.Value, path ...any) cty.Value {
	for _, step := range path {
		if v == cty.NilVal {
			return cty.NilVal
		}
		switch step := step.(type) {
		case string:
			if !v.Type().IsObjectType() || !v.Type().HasAttribute(step) {
				return cty.NilVal
			}
			v = v.GetAttr(step)
		case int:
			if !v.CanIterateElements() || v.LengthInt() <= step {
				return cty.NilVal
			}
			v = v.Index(cty.NumberIntVal(int64(step)))
		}
	}
	return v
}

// text returns the string at a path inside v, or "".
func text(v cty.Value, path ...any) string {
	if v = at(v, path...); v == cty.NilVal || v.Type() != cty.String {
		return ""
	}
	return v.AsString()
}

var errNone = errors.New("there is none")

// find returns the first instance of a type of resource that satisfies ok.
func (p *plan) find(typ string, ok func(cty.Value) bool) (cty.Value, error) {
	for _, v := range p.instances[typ] {
		if ok(v) {
			return v, nil
		}
	}
	return cty.NilVal, fmt.Errorf("%s: %w", typ, errNone)
}
