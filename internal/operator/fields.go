package operator

import (
	"reflect"
	"regexp"
	"strings"

	"github.com/scattermap/scattermap/mapper"
)

// goPath matches how an error of package mapper names a setting.
var goPath = regexp.MustCompile(`\b(StartOptions|PlanOptions|CleanUpOptions|Query|Rate)((?:\.[A-Z]\w*)+)`)

// roots are the types whose fields are named by requests, by their names in errors.
var roots = map[string]reflect.Type{
	"StartOptions": reflect.TypeFor[mapper.StartOptions](), "CleanUpOptions": reflect.TypeFor[mapper.CleanUpOptions](),
	"Query": reflect.TypeFor[mapper.Query](), "Rate": reflect.TypeFor[mapper.Rate](),
}

// planned are the names in JSON of what only a plan has.
var planned = map[string]string{"TimePerEntity": "per_entity_ns", "WritesPerEntity": "writes"}

// InJSON has the text of an error name settings as a request's JSON does: StartOptions.PageSize is
// "page_size", and StartOptions.Rate.EntitiesPerSecond "rate.entities".
func InJSON(text string) string {
	return goPath.ReplaceAllStringFunc(text, func(found string) string {
		parts := strings.Split(found, ".")
		if name := planned[parts[1]]; parts[0] == "PlanOptions" && name != "" {
			return `"` + name + `"`
		}
		var names []string
		for at, rest := roots[parts[0]], parts[1:]; len(rest) > 0; rest = rest[1:] {
			if at == nil || at.Kind() != reflect.Struct {
				return found
			}
			field, ok := at.FieldByName(rest[0])
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if !ok || name == "" || name == "-" {
				return found
			}
			names, at = append(names, name), field.Type
		}
		return `"` + strings.Join(names, ".") + `"`
	})
}
