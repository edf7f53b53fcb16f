package operator

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper"
)

// roots are the types whose fields requests can set, by their names in errors.
var roots = map[string]reflect.Type{
	"StartOptions": reflect.TypeFor[mapper.StartOptions](), "CleanUpOptions": reflect.TypeFor[mapper.CleanUpOptions](),
	"UndoOptions": reflect.TypeFor[mapper.UndoOptions](),
	"Query":       reflect.TypeFor[mapper.Query](), "Rate": reflect.TypeFor[mapper.Rate](),
}

// others are the JSON names of settings that are not fields of these types.
var others = map[setting.Name]string{
	"PlanOptions.TimePerEntity": "per_entity_ns", "PlanOptions.WritesPerEntity": "writes",
	"PlanOptions.CallsPerEntity": "calls",
	"Filter.AllowAnyType":        "any_type",
	"StartOptions.Files":         "params.files", // in an export's parameters
	"RetainAlways":               "-1",
	"Job.Move":                   "move", "Job.Retry": "retry", "Job.FailuresPage": "failures",
}

// JSONName returns the JSON name of a setting in a request: "page_size" for StartOptions.PageSize,
// and "rate.entities" for StartOptions.Rate.EntitiesPerSecond. It is empty if requests do not have
// the setting.
func JSONName(n setting.Name) string {
	if name, ok := others[n]; ok {
		return name
	}
	parts := strings.Split(string(n), ".")
	var names []string
	for at, rest := roots[parts[0]], parts[1:]; len(rest) > 0; rest = rest[1:] {
		if at == nil || at.Kind() != reflect.Struct {
			return ""
		}
		field, ok := at.FieldByName(rest[0])
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		if !ok || name == "" || name == "-" {
			return ""
		}
		names, at = append(names, name), field.Type
	}
	return strings.Join(names, ".")
}

// InJSON returns the text of an error with settings under their JSON names. Parts are the same text
// in pieces, for callers that use other names: every second one is a name, and the others are text.
func InJSON(err error) (text string, parts []string) {
	const mark = "\x00"
	marked := setting.In(err, func(n setting.Name) string {
		if name := JSONName(n); name != "" {
			return mark + name + mark
		}
		return string(n)
	})
	parts = strings.Split(marked, mark)
	if strings.Contains(err.Error(), mark) { // a user has used the mark in a name
		parts = []string{strings.ReplaceAll(marked, mark, `"`)}
	}
	var b strings.Builder
	for i, p := range parts {
		if i%2 == 0 || p == others["RetainAlways"] {
			b.WriteString(p)
			continue
		}
		fmt.Fprintf(&b, "%q", p)
	}
	return b.String(), parts
}

// Say returns the text of an error with settings under the names that call returns for their JSON
// names.
func Say(err error, call func(name string) string) string {
	return setting.In(err, func(n setting.Name) string { return call(cmp.Or(JSONName(n), string(n))) })
}

// Elsewhere describes a setting that a surface lacks, by its JSON name.
func Elsewhere(name string) string { return fmt.Sprintf("%q of the jobs API", name) }
