package cloudstandin

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/ext/tryfunc"
	"github.com/hashicorp/hcl/v2/hclsyntax"
	"github.com/zclconf/go-cty/cty"
	"github.com/zclconf/go-cty/cty/convert"
	"github.com/zclconf/go-cty/cty/function"
	"github.com/zclconf/go-cty/cty/function/stdlib"
)

// A module is a folder with parsed Terraform files.
type module struct {
	folder string
	// blocks has the blocks by their addresses: var.x, output.x, module.x, data.kind.name or
	// kind.name.
	blocks map[string]*hclsyntax.Block
	locals map[string]*hclsyntax.Attribute
}

func readModule(folder string) (*module, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*.tf"))
	if err != nil || len(files) == 0 {
		return nil, fmt.Errorf("no files of Terraform in %s", folder)
	}
	m := &module{folder, make(map[string]*hclsyntax.Block), make(map[string]*hclsyntax.Attribute)}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		parsed, problems := hclsyntax.ParseConfig(text, file, hcl.InitialPos)
		if problems.HasErrors() {
			return nil, problems
		}
		for _, b := range parsed.Body.(*hclsyntax.Body).Blocks {
			switch b.Type {
			case "locals":
				maps.Copy(m.locals, b.Body.Attributes)
			case "variable":
				m.blocks["var."+b.Labels[0]] = b
			case "output", "module":
				m.blocks[b.Type+"."+b.Labels[0]] = b
			case "data":
				m.blocks["data."+strings.Join(b.Labels, ".")] = b
			case "resource":
				m.blocks[strings.Join(b.Labels, ".")] = b
			}
		}
	}
	return m, nil
}

// checkVariables returns an error if a given variable is not declared, or if a declared variable
// without a default is not given.
func (m *module) checkVariables(given []string) error {
	for _, name := range given {
		if m.blocks["var."+name] == nil {
			return fmt.Errorf("Error: Value for undeclared variable: a variable named %q was assigned on the "+
				"command line, but the root module does not declare a variable of that name.", name)
		}
	}
	for _, address := range slices.Sorted(maps.Keys(m.blocks)) {
		name, ok := strings.CutPrefix(address, "var.")
		if ok && m.blocks[address].Body.Attributes["default"] == nil && !slices.Contains(given, name) {
			return fmt.Errorf("Error: No value for required variable: the root module input variable %q is not "+
				"set, and has no default value.", name)
		}
	}
	return nil
}

// A plan is the state of one run of "terraform apply" on a root module.
type plan struct {
	cloud   *Cloud
	ctx     context.Context
	made    *state
	outputs map[string]string
}

// An instance is a module that is applied with values for its variables.
type instance struct {
	*module
	plan    *plan
	path    string // start of the instance's addresses in the state: module.NAME., or "" for the root module
	values  map[string]cty.Value
	pending map[string]bool
}

func (p *plan) apply(root *module, variables map[string]string) error {
	given := make(map[string]cty.Value)
	for name, text := range variables {
		given[name] = cty.StringVal(text)
	}
	p.outputs = make(map[string]string)
	if p.made.there == nil {
		p.made.there = make(map[string]bool)
	}
	all, err := p.instantiate(root, "", given)
	for name, v := range all {
		if text, err := convert.Convert(v, cty.String); err == nil && !text.IsNull() {
			p.outputs[name] = text.AsString()
		} else {
			p.outputs[name] = ""
		}
	}
	return err
}

// instantiate creates all resources of a module, and returns the module's outputs.
func (p *plan) instantiate(m *module, path string, given map[string]cty.Value) (map[string]cty.Value, error) {
	if err := m.checkVariables(slices.Sorted(maps.Keys(given))); err != nil {
		return nil, err
	}
	i := &instance{m, p, path, make(map[string]cty.Value), make(map[string]bool)}
	for name, v := range given {
		if err := i.variable(name, v); err != nil {
			return nil, err
		}
	}
	outputs := make(map[string]cty.Value)
	for _, address := range slices.Sorted(maps.Keys(m.blocks)) {
		if err := i.resolve(address); err != nil {
			return nil, err
		}
		if name, ok := strings.CutPrefix(address, "output."); ok {
			outputs[name] = i.values[address]
		}
	}
	// Validations are checked last, because they may refer to other variables.
	for address, b := range m.blocks {
		if b.Type != "variable" {
			continue
		}
		for _, v := range b.Body.Blocks {
			ok, err := i.evaluate(v.Body.Attributes["condition"].Expr, nil)
			if err != nil {
				return nil, err
			}
			if ok.False() {
				return nil, fmt.Errorf("Invalid value for variable: %s%s", path, address)
			}
		}
	}
	return outputs, nil
}

// variable converts a value to the type that a variable declares, and assigns it.
func (i *instance) variable(name string, v cty.Value) error {
	b := i.blocks["var."+name]
	kind := cty.DynamicPseudoType
	if a := b.Body.Attributes["type"]; a != nil {
		switch text := expressionText(a.Expr); text {
		case "string":
			kind = cty.String
		case "number":
			kind = cty.Number
		case "bool":
			kind = cty.Bool
		case "list(string)":
			kind = cty.List(cty.String)
		case "set(string)":
			kind = cty.Set(cty.String)
		case "map(string)":
			kind = cty.Map(cty.String)
		}
	}
	converted, err := convert.Convert(v, kind)
	if err != nil {
		return fmt.Errorf("Invalid value for variable %s%s: %w", i.path, name, err)
	}
	i.values["var."+name] = converted
	return nil
}

// expressionText returns the source text of an expression that names a type.
func expressionText(e hclsyntax.Expression) string {
	switch e := e.(type) {
	case *hclsyntax.FunctionCallExpr:
		var inner []string
		for _, a := range e.Args {
			inner = append(inner, expressionText(a))
		}
		return e.Name + "(" + strings.Join(inner, ", ") + ")"
	case *hclsyntax.ScopeTraversalExpr:
		return e.Traversal.RootName()
	}
	return ""
}

// addressOf returns the address of the block to which a reference in an expression points.
func (i *instance) addressOf(t hcl.Traversal) string {
	parts := []string{t.RootName()}
	for _, step := range t[1:] {
		if a, ok := step.(hcl.TraverseAttr); ok {
			parts = append(parts, a.Name)
		} else {
			break
		}
	}
	n := 2
	if parts[0] == "data" {
		n = 3
	}
	return strings.Join(parts[:min(n, len(parts))], ".")
}

// need resolves all blocks to which an expression refers, before the expression is evaluated.
func (i *instance) need(variables []hcl.Traversal) error {
	for _, t := range variables {
		address := i.addressOf(t)
		if name, ok := strings.CutPrefix(address, "local."); ok {
			if i.locals[name] == nil {
				return fmt.Errorf("there is no %s", address)
			}
		} else if i.blocks[address] == nil {
			continue // this name is not a block: each, path, or a variable of a for expression
		}
		if err := i.resolve(address); err != nil {
			return err
		}
	}
	return nil
}

// evaluate returns the value of an expression. Besides the module's blocks, it may refer to the
// variables in more.
func (i *instance) evaluate(e hcl.Expression, more map[string]cty.Value) (cty.Value, error) {
	if err := i.need(e.Variables()); err != nil {
		return cty.NilVal, err
	}
	context := &hcl.EvalContext{Variables: make(map[string]cty.Value), Functions: i.functions()}
	tree := make(map[string]any)
	for address, v := range i.values {
		at := tree
		parts := strings.Split(address, ".")
		for _, p := range parts[:len(parts)-1] {
			if at[p] == nil {
				at[p] = make(map[string]any)
			}
			at = at[p].(map[string]any)
		}
		at[parts[len(parts)-1]] = v
	}
	for name, v := range tree {
		context.Variables[name] = objectOf(v)
	}
	context.Variables["path"] = cty.ObjectVal(map[string]cty.Value{"module": cty.StringVal(i.folder)})
	maps.Copy(context.Variables, more)
	v, problems := e.Value(context)
	if problems.HasErrors() {
		return v, problems
	}
	return v, nil
}

func objectOf(v any) cty.Value {
	if v, ok := v.(cty.Value); ok {
		return v
	}
	all := make(map[string]cty.Value)
	for name, inner := range v.(map[string]any) {
		all[name] = objectOf(inner)
	}
	return cty.ObjectVal(all)
}

// resolve evaluates the block at an address, unless this was already done. If the block is a
// resource, it creates the resource.
func (i *instance) resolve(address string) (err error) {
	if _, ok := i.values[address]; ok {
		return nil
	}
	if i.pending[address] {
		return fmt.Errorf("Cycle: %s%s", i.path, address)
	}
	i.pending[address] = true
	if name, ok := strings.CutPrefix(address, "local."); ok {
		i.values[address], err = i.evaluate(i.locals[name].Expr, nil)
		return err
	}
	b := i.blocks[address]
	switch b.Type {
	case "variable":
		v, err := i.evaluate(b.Body.Attributes["default"].Expr, nil)
		if err != nil {
			return err
		}
		return i.variable(b.Labels[0], v)
	case "output":
		i.values[address], err = i.evaluate(b.Body.Attributes["value"].Expr, nil)
		return err
	case "module":
		i.values[address], err = i.inner(b)
		return err
	}
	if depends := b.Body.Attributes["depends_on"]; depends != nil {
		if err := i.need(depends.Expr.Variables()); err != nil {
			return err
		}
	}
	i.values[address], err = i.resource(address, b)
	if err != nil {
		return fmt.Errorf("%s%s: %w", i.path, address, err)
	}
	return nil
}

// inner instantiates the module that a module block calls, and returns its outputs.
func (i *instance) inner(b *hclsyntax.Block) (cty.Value, error) {
	given := make(map[string]cty.Value)
	var source string
	for name, a := range b.Body.Attributes {
		v, err := i.evaluate(a.Expr, nil)
		switch {
		case err != nil:
			return v, err
		case name == "source":
			source = v.AsString()
		case name != "depends_on" && name != "version" && !v.IsNull():
			given[name] = v
		}
	}
	m, err := readModule(filepath.Join(i.folder, source))
	if err != nil {
		return cty.NilVal, err
	}
	outputs, err := i.plan.instantiate(m, i.path+"module."+b.Labels[0]+".", given)
	return cty.ObjectVal(outputs), err
}

// resource creates the resource of a block, or several resources if the block has count or
// for_each. It returns the value that other blocks see under the resource's address.
func (i *instance) resource(address string, b *hclsyntax.Block) (cty.Value, error) {
	if a := b.Body.Attributes["for_each"]; a != nil {
		over, err := i.evaluate(a.Expr, nil)
		if err != nil {
			return over, err
		}
		all := make(map[string]cty.Value)
		for it := over.ElementIterator(); it.Next(); {
			key, value := it.Element()
			if over.Type().IsSetType() {
				key = value
			}
			each := map[string]cty.Value{"each": cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})}
			if all[key.AsString()], err = i.one(fmt.Sprintf("%s[%q]", address, key.AsString()), b, each); err != nil {
				return cty.NilVal, err
			}
		}
		return cty.ObjectVal(all), nil
	}
	if a := b.Body.Attributes["count"]; a != nil {
		over, err := i.evaluate(a.Expr, nil)
		if err != nil {
			return over, err
		}
		n, _ := over.AsBigFloat().Int64()
		all := []cty.Value{}
		for index := range n {
			v, err := i.one(fmt.Sprintf("%s[%d]", address, index), b,
				map[string]cty.Value{"count": cty.ObjectVal(map[string]cty.Value{"index": cty.NumberIntVal(index)})})
			if err != nil {
				return v, err
			}
			all = append(all, v)
		}
		return cty.TupleVal(all), nil
	}
	return i.one(address, b, nil)
}

// one creates a single resource, and returns the value that other blocks see under its address. The
// argument more has the variables of this resource with count or for_each, such as each.key.
func (i *instance) one(address string, b *hclsyntax.Block, more map[string]cty.Value) (cty.Value, error) {
	o, err := i.object(b.Body, more)
	if err != nil {
		return cty.NilVal, err
	}
	if i.plan.made.there[i.path+address] {
		return o.value(nil), nil // the resource exists, and is unchanged
	}
	computed, undo, err := i.plan.create(b.Labels[0], o)
	if err != nil {
		return cty.NilVal, err
	}
	if b.Type == "resource" {
		i.plan.made.there[i.path+address] = true
		i.plan.made.undo = append(i.plan.made.undo, undo)
	}
	return o.value(computed), nil
}

// An object is an evaluated block of a resource: its attributes and inner blocks.
type object struct {
	attributes map[string]cty.Value
	blocks     map[string][]object
}

// object evaluates the body of a block.
func (i *instance) object(body *hclsyntax.Body, more map[string]cty.Value) (o object, err error) {
	o = object{make(map[string]cty.Value), make(map[string][]object)}
	for name, a := range body.Attributes {
		if slices.Contains([]string{"for_each", "count", "depends_on", "provider"}, name) {
			continue
		}
		if o.attributes[name], err = i.evaluate(a.Expr, more); err != nil {
			return o, err
		}
	}
	for _, b := range body.Blocks {
		if b.Type == "lifecycle" || b.Type == "timeouts" {
			continue
		}
		if b.Type != "dynamic" {
			inner, err := i.object(b.Body, more)
			if err != nil {
				return o, err
			}
			o.blocks[b.Type] = append(o.blocks[b.Type], inner)
			continue
		}
		name := b.Labels[0]
		over, err := i.evaluate(b.Body.Attributes["for_each"].Expr, more)
		if err != nil {
			return o, err
		}
		for it := over.ElementIterator(); it.Next(); {
			key, value := it.Element()
			scope := maps.Clone(more)
			if scope == nil {
				scope = make(map[string]cty.Value)
			}
			scope[name] = cty.ObjectVal(map[string]cty.Value{"key": key, "value": value})
			inner, err := i.object(b.Body.Blocks[0].Body, scope)
			if err != nil {
				return o, err
			}
			o.blocks[name] = append(o.blocks[name], inner)
		}
	}
	return o, nil
}

// value returns the value that other blocks see: the object's attributes, and the attributes that
// Google's provider computes.
func (o object) value(computed map[string]string) cty.Value {
	all := maps.Clone(o.attributes)
	for name, text := range computed {
		all[name] = cty.StringVal(text)
	}
	return cty.ObjectVal(all)
}

// text returns an attribute as text, or "" if it is missing.
func (o object) text(name string) string {
	v, ok := o.attributes[name]
	if !ok || v.IsNull() {
		return ""
	}
	text, err := convert.Convert(v, cty.String)
	if err != nil {
		return ""
	}
	return text.AsString()
}

func (o object) number(name string) float64 {
	v, ok := o.attributes[name]
	if !ok || v.IsNull() || v.Type() != cty.Number {
		return 0
	}
	n, _ := v.AsBigFloat().Float64()
	return n
}

func (o object) list(name string) (all []string) {
	v, ok := o.attributes[name]
	if !ok || v.IsNull() || !v.CanIterateElements() {
		return nil
	}
	for it := v.ElementIterator(); it.Next(); {
		_, each := it.Element()
		all = append(all, each.AsString())
	}
	return all
}

// item returns the element with a key in an attribute that is a map, as text. It returns "" if
// there is none.
func (o object) item(name, key string) string {
	v, ok := o.attributes[name]
	if !ok || v.IsNull() || !v.CanIterateElements() {
		return ""
	}
	for it := v.ElementIterator(); it.Next(); {
		if k, each := it.Element(); k.AsString() == key {
			return each.AsString()
		}
	}
	return ""
}

// block returns the first inner block with this name, or an empty object if there is none.
func (o object) block(name string) object {
	if all := o.blocks[name]; len(all) > 0 {
		return all[0]
	}
	return object{}
}

// functions has the functions of Terraform's language that this repository's modules use.
func (i *instance) functions() map[string]function.Function {
	text := func(name string) []function.Parameter {
		return []function.Parameter{{Name: name, Type: cty.String}}
	}
	boolean := func(want func(s, part string) bool) function.Function {
		return function.New(&function.Spec{
			Params: append(text("text"), text("part")...), Type: function.StaticReturnType(cty.Bool),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				return cty.BoolVal(want(args[0].AsString(), args[1].AsString())), nil
			},
		})
	}
	every := func(all bool) function.Function {
		return function.New(&function.Spec{
			Params: []function.Parameter{{Name: "list", Type: cty.List(cty.Bool)}},
			Type:   function.StaticReturnType(cty.Bool),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				result := all
				for it := args[0].ElementIterator(); it.Next(); {
					if _, v := it.Element(); v.True() != all {
						result = !all
					}
				}
				return cty.BoolVal(result), nil
			},
		})
	}
	to := func(t cty.Type) function.Function { return stdlib.MakeToFunc(t) }
	return map[string]function.Function{
		"abs": stdlib.AbsoluteFunc, "ceil": stdlib.CeilFunc, "chomp": stdlib.ChompFunc,
		"coalesce": stdlib.CoalesceFunc,
		"compact":  stdlib.CompactFunc, "concat": stdlib.ConcatFunc, "contains": stdlib.ContainsFunc,
		"distinct": stdlib.DistinctFunc,
		"element":  stdlib.ElementFunc, "flatten": stdlib.FlattenFunc, "floor": stdlib.FloorFunc,
		"format":     stdlib.FormatFunc,
		"formatlist": stdlib.FormatListFunc, "indent": stdlib.IndentFunc, "join": stdlib.JoinFunc,
		"jsonencode": stdlib.JSONEncodeFunc,
		"keys":       stdlib.KeysFunc, "length": stdlib.LengthFunc, "lookup": stdlib.LookupFunc,
		"lower": stdlib.LowerFunc, "max": stdlib.MaxFunc,
		"merge": stdlib.MergeFunc, "min": stdlib.MinFunc, "range": stdlib.RangeFunc, "regex": stdlib.RegexFunc,
		"regexall": stdlib.RegexAllFunc,
		"replace":  stdlib.ReplaceFunc, "reverse": stdlib.ReverseListFunc, "setunion": stdlib.SetUnionFunc,
		"setsubtract": stdlib.SetSubtractFunc,
		"signum":      stdlib.SignumFunc, "slice": stdlib.SliceFunc, "sort": stdlib.SortFunc,
		"split": stdlib.SplitFunc, "strrev": stdlib.ReverseFunc,
		"substr": stdlib.SubstrFunc, "title": stdlib.TitleFunc, "trimprefix": stdlib.TrimPrefixFunc,
		"trimspace":  stdlib.TrimSpaceFunc,
		"trimsuffix": stdlib.TrimSuffixFunc, "upper": stdlib.UpperFunc, "values": stdlib.ValuesFunc,
		"zipmap":   stdlib.ZipmapFunc,
		"tostring": to(cty.String), "tonumber": to(cty.Number), "tobool": to(cty.Bool),
		"toset":  to(cty.Set(cty.DynamicPseudoType)),
		"tolist": to(cty.List(cty.DynamicPseudoType)), "tomap": to(cty.Map(cty.DynamicPseudoType)),
		"try": tryfunc.TryFunc, "can": tryfunc.CanFunc,
		"endswith": boolean(strings.HasSuffix), "startswith": boolean(strings.HasPrefix),
		"strcontains": boolean(strings.Contains),
		"alltrue":     every(true), "anytrue": every(false),
		"file": function.New(&function.Spec{
			Params: text("path"), Type: function.StaticReturnType(cty.String),
			Impl: func(args []cty.Value, _ cty.Type) (cty.Value, error) {
				content, err := os.ReadFile(args[0].AsString())
				return cty.StringVal(string(content)), err
			},
		}),
	}
}
