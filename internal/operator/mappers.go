package operator

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// A Startable is a mapper of an engine whose jobs operators can start.
type Startable struct {
	mapper.MapperInfo

	Destroys bool // whether the mapper overwrites or deletes the entities of its query
	Params   []Param
}

// Mappers returns the mappers whose jobs operators can start, sorted by name.
func Mappers(e *mapper.Engine) (all []Startable) {
	for _, m := range e.Mappers() {
		params := ParamsOf(m.ParamsType)
		if m.Name == prebuilt.EraseName { // the mapper's starter sets this parameter
			params = slices.DeleteFunc(params, func(p Param) bool { return p.Name == "all_kinds" })
		}
		all = append(all, Startable{m, prebuilt.Destroys(m.Name), params})
	}
	return all
}

// A MapperList is the jobs API's list of mappers, with what else a start can name.
type MapperList struct {
	Mappers []Mapper `json:"mappers"`
	Queues  []string `json:"queues"`
	Kinds   []string `json:"kinds,omitempty"` // only if the request asks for them
}

// A Mapper describes a [Startable] in an answer of the jobs API.
type Mapper struct {
	Name        string        `json:"name"`
	Mode        string        `json:"mode"` // update or visit
	Destroys    bool          `json:"destroys,omitempty"`
	Description string        `json:"description,omitempty"`
	Params      []MapperParam `json:"params"`
}

// A MapperParam describes a [Param] in an answer of the jobs API.
type MapperParam struct {
	Name     string `json:"name"`
	Type     string `json:"type"`
	Optional bool   `json:"optional,omitempty"`
}

// Told returns the mapper as the jobs API describes it.
func (s Startable) Told() Mapper {
	m := Mapper{s.Name, "update", s.Destroys, s.Description, []MapperParam{}}
	if s.Visit {
		m.Mode = "visit"
	}
	for _, p := range s.Params {
		m.Params = append(m.Params, MapperParam{p.Name, p.TypeName(), p.Optional || p.Omits})
	}
	return m
}

// Does returns what a mapper does, as a text.
func (m Mapper) Does() string {
	text := m.Mode + "s entities"
	if m.Destroys {
		text += ", and destroys data"
	}
	return text
}

// Missing returns the names of the numbers and times that a mapper needs and a start's parameters
// lack. The function would take them for zero, which is seldom intended. The mapper itself checks
// its other parameters, and refuses parameters that are no JSON object.
func (m Mapper) Missing(params json.RawMessage) (missing []string) {
	if json.Unmarshal(params, new(map[string]json.RawMessage)) != nil {
		return nil
	}
	for _, p := range m.Params {
		number := slices.ContainsFunc(needed, func(kind string) bool { return typeNames[kind] == p.Type })
		if number && p.Name != "" && !p.Optional && !has(params, p.Name) {
			missing = append(missing, p.Name)
		}
	}
	return missing
}

// has reports whether a JSON object has a member with a name, in any case of letters as in
// encoding/json. A name with dots can lead through objects.
func has(object json.RawMessage, name string) bool {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		return false
	}
	for key, member := range members {
		n := len(key)
		switch {
		case strings.EqualFold(key, name):
			return true
		case len(name) > n && name[n] == '.' && strings.EqualFold(key, name[:n]) && has(member, name[n+1:]):
			return true
		}
	}
	return false
}

// manySuggestions is the largest number of suggestions.
const manySuggestions = 300

// Suggestions returns up to 300 names that a database has, without reserved names and scattermap's
// own: kinds if the parameter of is "__kind__", and namespaces if it is "__namespace__".
func Suggestions(ctx context.Context, client *datastore.Client, of string) (all []string, err error) {
	keys, err := client.GetAll(ctx, datastore.NewQuery(of).KeysOnly().Limit(manySuggestions), nil)
	for _, k := range keys {
		if k.Name != "" && !names.Reserved(k.Name) && !names.Ours("", k.Name) {
			all = append(all, k.Name)
		}
	}
	return all, err
}
