package entity

import (
	"errors"
	"maps"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/model"
)

// Mask applies a property mask, which is a list of property paths. It returns a copy of the map
// before in which each property of the mask has its value from the map after. If that map lacks
// such a property, the copy lacks it, too.
func Mask(before, after map[string]*pb.Value, paths []string) (map[string]*pb.Value, error) {
	result := make(map[string]*pb.Value, len(before))
	maps.Copy(result, before)
	for _, p := range paths {
		names, err := splitPath(p)
		if err != nil {
			return nil, err
		}
		maskOne(result, after, names)
	}
	return result, nil
}

// CheckMask returns an error if a path in a property mask is invalid.
func CheckMask(mask *pb.PropertyMask) error {
	for _, p := range mask.GetPaths() {
		if _, err := splitPath(p); err != nil {
			return err
		}
	}
	return nil
}

func maskOne(to, from map[string]*pb.Value, names []string) {
	name := names[0]
	v, ok := from[name]
	if len(names) == 1 {
		if ok {
			to[name] = v
		} else {
			delete(to, name)
		}
		return
	}
	sub := v.GetEntityValue().GetProperties()
	old := to[name].GetEntityValue()
	if old == nil && sub == nil {
		return
	}
	properties := make(map[string]*pb.Value)
	maps.Copy(properties, old.GetProperties())
	maskOne(properties, sub, names[1:])
	to[name] = &pb.Value{
		ExcludeFromIndexes: v.GetExcludeFromIndexes(),
		ValueType:          &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: old.GetKey(), Properties: properties}},
	}
}

// splitPath splits the path of a property at its dots, into names. A name may be in backticks.
// Inside backticks, a dot is part of the name, and a backslash escapes any character. Outside, a
// backslash escapes a dot or a backslash.
func splitPath(p string) ([]string, error) {
	var names []string
	for rest := p; ; {
		name, behind, err := firstName(rest)
		if err != nil {
			return nil, model.Invalid("the property path %q %v", p, err)
		}
		if name == "" || model.Reserved(name) && p != model.KeyProperty {
			return nil, model.Invalid("the property path %q has an empty or a reserved name", p)
		}
		names = append(names, name)
		if behind == "" {
			return names, nil
		}
		rest = behind[1:] // it starts with a dot
	}
}

// firstName returns the first name of a path, up to a dot or the end, and the rest of the path.
func firstName(path string) (name, behind string, err error) {
	quoted := strings.HasPrefix(path, "`")
	var b strings.Builder
	i := 0
	if quoted {
		i = 1
	}
	for ; i < len(path); i++ {
		switch c := path[i]; {
		case c == '\\':
			if i++; i == len(path) || !quoted && path[i] != '.' && path[i] != '\\' {
				return "", "", errors.New("has a stray backslash")
			}
			b.WriteByte(path[i])
		case quoted && c == '`':
			if behind = path[i+1:]; behind != "" && behind[0] != '.' {
				return "", "", errors.New("goes on behind a closing backtick without a dot")
			}
			return b.String(), behind, nil
		case !quoted && c == '.':
			return b.String(), path[i:], nil
		default:
			b.WriteByte(c)
		}
	}
	if quoted {
		return "", "", errors.New("has no closing backtick")
	}
	return b.String(), "", nil
}
