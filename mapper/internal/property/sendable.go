package property

import (
	"fmt"
	"unicode/utf8"

	"cloud.google.com/go/datastore"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/pbvalue"
)

// mostIndexed is the largest number of indexed values in an entity. If there are more, the Go
// client refuses to send it (datastore/prop.go).
const mostIndexed = 20_000

// CheckSendable returns an error, which names the property, if the Go client can't send one of an
// entity's properties. Without this check, the client would refuse the whole commit with an error
// that does not name the entity.
func CheckSendable(properties []datastore.Property) error {
	names, indexed := make(map[string]bool, len(properties)), 0
	for _, p := range properties {
		if p.Name == keyField {
			continue // the client does not send the key as a property
		}
		if err := checkName(p.Name, names); err != nil {
			return err
		}
		if err := checkSendable(p.Value); err != nil {
			return fmt.Errorf("property %q: %w", p.Name, err)
		}
		v, err := pbvalue.Of(p.Value, p.NoIndex)
		if err == nil {
			err = CheckText(v)
		}
		if err != nil {
			return fmt.Errorf("property %q: %w", p.Name, err)
		}
		if list, ok := p.Value.([]any); ok && !p.NoIndex {
			indexed += len(list)
		} else if !p.NoIndex {
			indexed++
		}
	}
	if indexed > mostIndexed {
		return fmt.Errorf("%d values are indexed, and an entity has at most %d", indexed, mostIndexed)
	}
	return nil
}

// CheckText returns an error if a protocol message, such as a key, contains a text that is not
// valid UTF-8. Such a message can't be sent.
func CheckText(m proto.Message) error {
	if _, err := proto.Marshal(m); err != nil {
		return fmt.Errorf("a text in it is not valid UTF-8: %w", err)
	}
	return nil
}

// checkName returns an error if the name of a property is invalid, or is already in names. It adds
// the name to names.
func checkName(name string, names map[string]bool) error {
	switch {
	case names[name]:
		return fmt.Errorf("property %q is there twice", name)
	case !utf8.ValidString(name):
		return fmt.Errorf("the property's name %q is not valid UTF-8", name)
	}
	names[name] = true
	return nil
}

// checkSendable returns an error if an entity inside a value has properties that the Go client
// can't send.
func checkSendable(v any) error {
	switch v := v.(type) {
	case []any:
		for i, el := range v {
			if err := checkSendable(el); err != nil {
				return fmt.Errorf("at index %d: %w", i, err)
			}
		}
	case *datastore.Entity:
		if v != nil {
			return CheckSendable(v.Properties)
		}
	}
	return nil
}
