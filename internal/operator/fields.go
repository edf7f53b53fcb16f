package operator

import (
	"cmp"
	"fmt"
	"reflect"
	"strings"

	"github.com/scattermap/scattermap/internal/setting"
	"github.com/scattermap/scattermap/mapper"
)

// roots are the Go types whose fields are settings in requests. The key is the type's name in the
// names of settings.
var roots = map[string]reflect.Type{
	"StartOptions": reflect.TypeFor[mapper.StartOptions](), "CleanUpOptions": reflect.TypeFor[mapper.CleanUpOptions](),
	"UndoOptions": reflect.TypeFor[mapper.UndoOptions](),
	"Query":       reflect.TypeFor[mapper.Query](), "Rate": reflect.TypeFor[mapper.Rate](),
}

// others are the JSON names of the settings that are not fields of a type in roots.
var others = map[setting.Name]string{
	"PlanOptions.TimePerEntity": "per_entity_ns", "PlanOptions.WritesPerEntity": "writes",
	"PlanOptions.CallsPerEntity": "calls",
	"Filter.AllowAnyType":        "any_type",
	"StartOptions.Files":         "params.files", // in an export's parameters
	"RetainAlways":               "-1",
	"Job.Move":                   "move", "Job.Retry": "retry", "Job.FailuresPage": "failures",
}

// JSONName returns a setting's JSON name in requests: "page_size" for StartOptions.PageSize, and
// "rate.entities" for StartOptions.Rate.EntitiesPerSecond. It returns "" for a setting that
// requests do not have.
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

// InJSON returns an error's text, in which settings have their JSON names. Parts are the pieces of
// this text, for callers that replace the names: first a text, then a name, and so on in turn.
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

// Say returns an error's text, in which call chooses the name of each setting. Call gets the
// setting's JSON name, or the Go name if there is none.
func Say(err error, call func(name string) string) string {
	return setting.In(err, func(n setting.Name) string { return call(cmp.Or(JSONName(n), string(n))) })
}

// Elsewhere returns the words for a setting that the command line or the dashboard does not have:
// its JSON name "of the jobs API".
func Elsewhere(name string) string { return fmt.Sprintf("%q of the jobs API", name) }
