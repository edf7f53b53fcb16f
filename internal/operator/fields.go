package operator

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper"
)

// roots has the Go types whose fields are settings in requests. The keys are the first parts of
// their [setting.Name]s.
var roots = map[string]reflect.Type{
	"StartOptions": reflect.TypeFor[mapper.StartOptions](), "CleanUpOptions": reflect.TypeFor[mapper.CleanUpOptions](),
	"UndoOptions": reflect.TypeFor[mapper.UndoOptions](),
	"Query":       reflect.TypeFor[mapper.Query](), "Rate": reflect.TypeFor[mapper.Rate](),
}

// others has the JSON names of settings that are not fields of the types in [roots].
var others = map[setting.Name]string{
	"PlanOptions.TimePerEntity": "per_entity_ns", "PlanOptions.WritesPerEntity": "writes",
	"PlanOptions.CallsPerEntity": "calls",
	"Filter.AllowAnyType":        "any_type",
	"StartOptions.Files":         "params.files", // a parameter of exports
	"RetainAlways":               "-1",
	"Job.Move":                   "move", "Job.Retry": "retry", "Job.FailuresPage": "failures",
}

// JSONName returns the JSON name of a setting in requests. Examples are "page_size" for
// StartOptions.PageSize, and "rate.entities" for StartOptions.Rate.EntitiesPerSecond. It returns ""
// for a setting that requests do not have.
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

// InJSON returns the text of an error in which settings have their JSON names. The result parts is
// the same text in pieces: a text, then a setting's name, then a text, and so on. With it, a caller
// can replace the names.
func InJSON(err error) (text string, parts []string) {
	const mark = "\x00"
	marked := setting.In(err, func(n setting.Name) string {
		if name := JSONName(n); name != "" {
			return mark + name + mark
		}
		return string(n)
	})
	parts = strings.Split(marked, mark)
	if strings.Contains(err.Error(), mark) { // a user's text has the mark, so the text can't be split
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

// Say returns the text of an error in which settings have other names. For each setting, it calls
// call with the JSON name, or with the Go name if there is no JSON name, and uses the result.
func Say(err error, call func(name string) string) string {
	return setting.In(err, func(n setting.Name) string { return call(cmp.Or(JSONName(n), string(n))) })
}

// Elsewhere returns the name for a setting that the command line or the dashboard does not have:
// its JSON name, followed by "of the jobs API".
func Elsewhere(name string) string { return fmt.Sprintf("%q of the jobs API", name) }
