package prebuilt

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// Mappers returns all of the package's mappers, for mapper.Options.
func Mappers() []mapper.Definition {
	return mapper.Set(Count, Check, Touch, Delete, Set, Rename, Drop, Copy)
}

// Destroys reports whether the mapper of a name changes or deletes what is stored: its jobs should be rehearsed first.
func Destroys(name string) bool {
	return slices.Contains([]string{Delete.Name(), Set.Name(), Rename.Name(), Drop.Name(), EraseName}, name)
}

// An entity has whatever properties there are.
type entity = datastore.PropertyList

// CountParams are the parameters of [Count].
type CountParams struct {
	By string `json:"by,omitempty"` // a property, by whose values to count; empty: nothing
}

// Count is the mapper "count": it counts entities, under the counter "entities", and by the values of a property, if one is
// named: "plan=free", and "plan (missing)" of those that do not have it. An entity with several values counts for each. A job has up to
// 40,000 counters, so a property with more values fails it.
var Count = mapper.Visit("count", func(_ context.Context, e *mapper.Entity[entity], p CountParams) error {
	e.Count("entities", 1)
	if p.By == "" {
		return nil
	}
	i := slices.IndexFunc(e.Value, named(p.By))
	if i < 0 {
		e.Count(name(p.By+" (missing)"), 1)
		return nil
	}
	values, ok := e.Value[i].Value.([]any)
	if !ok {
		values = []any{e.Value[i].Value}
	}
	for _, v := range values {
		e.Count(name(p.By+"="+shown(v)), 1)
	}
	return nil
})

// name returns what a counter can be called: at most 100 bytes.
func name(s string) string {
	if len(s) <= 100 {
		return s
	}
	return string(bytes.ToValidUTF8([]byte(s[:97]), nil)) + "..."
}

// shown writes a value for people.
func shown(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case time.Time:
		return v.UTC().Format(time.RFC3339Nano)
	case *datastore.Key:
		return v.String()
	case []byte:
		return fmt.Sprintf("%d bytes", len(v))
	case *datastore.Entity:
		return "(an entity)"
	}
	return fmt.Sprint(v)
}

func named(property string) func(datastore.Property) bool {
	return func(p datastore.Property) bool { return p.Name == property }
}

// Touch is the mapper "touch": it writes entities exactly as they are stored, so that an index that was added since, or a
// time-to-live policy, has them.
var Touch = mapper.Update("touch", func(_ context.Context, e *mapper.Entity[entity], _ mapper.None) error {
	e.Touch()
	return nil
})

// Delete is the mapper "delete": it deletes entities.
var Delete = mapper.Update("delete", func(_ context.Context, e *mapper.Entity[entity], _ mapper.None) error {
	e.Delete(e.Key)
	return nil
})

// SetParams are the parameters of [Set].
type SetParams struct {
	Property string `json:"property"`
	Value    Value  `json:"value"`
	NoIndex  bool   `json:"noindex,omitempty"`
}

// Set is the mapper "set": it sets a property to a value, and leaves entities that have it already.
var Set = mapper.Update("set", func(_ context.Context, e *mapper.Entity[entity], p SetParams) error {
	if p.Property == "" {
		return mapper.Permanent(errors.New(`set: the parameter "property" names none`))
	}
	property := datastore.Property{Name: p.Property, Value: p.Value.V, NoIndex: p.NoIndex}
	if i := slices.IndexFunc(e.Value, named(p.Property)); i >= 0 {
		e.Value[i] = property
		return nil
	}
	e.Value = append(e.Value, property)
	return nil
})

// A Value is what a property is set to, in the JSON of a filter's value (see mapper.Filter): a number, a text, true, null, or
// {"time": "2026-10-24T00:00:00Z"}.
type Value struct{ V any }

// MarshalJSON writes it.
func (v Value) MarshalJSON() ([]byte, error) {
	var f struct {
		Value json.RawMessage `json:"value"`
	}
	text, err := json.Marshal(mapper.Where("v", "=", v.V))
	if err == nil {
		err = json.Unmarshal(text, &f)
	}
	if err != nil {
		return nil, err
	}
	if f.Value == nil {
		return []byte("null"), nil
	}
	return f.Value, nil
}

// UnmarshalJSON reads it.
func (v *Value) UnmarshalJSON(text []byte) error {
	filter, err := json.Marshal(map[string]any{"property": "v", "op": "=", "value": json.RawMessage(text)})
	if err != nil {
		return err
	}
	var f mapper.Filter
	if err := json.Unmarshal(filter, &f); err != nil {
		return err
	}
	v.V = f.Value
	return nil
}

// RenameParams are the parameters of [Rename].
type RenameParams struct {
	From string `json:"from"`
	To   string `json:"to"`
}

// Rename is the mapper "rename": it gives a property another name. Entities without the property stay as they are, and one that has
// both is a failure, as one of them would be lost.
var Rename = mapper.Update("rename", func(_ context.Context, e *mapper.Entity[entity], p RenameParams) error {
	if p.From == "" || p.To == "" || p.From == p.To {
		return mapper.Permanent(fmt.Errorf("rename: the parameters are from %q to %q", p.From, p.To))
	}
	from := slices.IndexFunc(e.Value, named(p.From))
	switch {
	case from < 0:
		return mapper.Skip
	case slices.ContainsFunc(e.Value, named(p.To)):
		return mapper.Permanent(fmt.Errorf("rename: the entity has both %q and %q", p.From, p.To))
	}
	e.Value[from].Name = p.To
	return nil
})

// DropParams are the parameters of [Drop].
type DropParams struct {
	Properties []string `json:"properties"`
}

// Drop is the mapper "drop": it removes properties. Entities without them stay as they are.
var Drop = mapper.Update("drop", func(_ context.Context, e *mapper.Entity[entity], p DropParams) error {
	if len(p.Properties) == 0 {
		return mapper.Permanent(errors.New(`drop: the parameter "properties" is empty`))
	}
	e.Value = slices.DeleteFunc(e.Value, func(q datastore.Property) bool { return slices.Contains(p.Properties, q.Name) })
	return nil
})

// CopyParams are the parameters of [Copy].
type CopyParams struct {
	Kind      string  `json:"kind,omitempty"`      // of the copies; empty: that of the entities
	Namespace *string `json:"namespace,omitempty"` // of the copies; absent: that of the entities
}

// Copy is the mapper "copy": it copies entities exactly as they are stored to another kind, or namespace, under the same
// names and ids. A copy that is there is overwritten.
var Copy = mapper.Update("copy", func(_ context.Context, e *mapper.Entity[entity], p CopyParams) error {
	to := *e.Key
	if p.Kind != "" {
		to.Kind = p.Kind
	}
	if p.Namespace != nil {
		to.Namespace, to.Parent = *p.Namespace, moved(to.Parent, *p.Namespace)
	}
	if to.Equal(e.Key) {
		return mapper.Permanent(errors.New("copy: the copy would be the entity itself: name another kind or namespace"))
	}
	e.PutStored(&to, e.Stored())
	return nil
})

// moved returns a key in another namespace, with its parents.
func moved(k *datastore.Key, namespace string) *datastore.Key {
	if k == nil {
		return nil
	}
	c := *k
	c.Namespace, c.Parent = namespace, moved(k.Parent, namespace)
	return &c
}
