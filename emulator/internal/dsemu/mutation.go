package dsemu

import (
	"strings"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// A draft is an entity as the mutations of one commit have left it so far.
type draft struct {
	key     storedKey
	before  version
	existed bool

	exists     bool
	properties map[string]*pb.Value
	last       string // the operation applied last
}

// A draftSet is what a commit is about to write.
type draftSet struct {
	db     *database
	byID   map[string]*draft
	order  []*draft
	atomic bool // a transaction's: it may change an entity more than once
}

// apply adds one mutation, and returns the key if it was completed.
func (s *draftSet) apply(m *pb.Mutation) (d *draft, completed bool, err error) {
	var operation string
	var entity *pb.Entity
	switch op := m.Operation.(type) {
	case *pb.Mutation_Insert:
		operation, entity = "insert", op.Insert
	case *pb.Mutation_Update:
		operation, entity = "update", op.Update
	case *pb.Mutation_Upsert:
		operation, entity = "upsert", op.Upsert
	case *pb.Mutation_Delete:
		operation, entity = "delete", &pb.Entity{Key: op.Delete}
	default:
		return nil, false, invalid("a mutation has no operation")
	}
	switch {
	case m.ConflictDetectionStrategy != nil:
		return nil, false, unimplemented("conflict detection by version or time")
	case len(m.PropertyTransforms) > 0:
		return nil, false, unimplemented("property transforms")
	case m.PropertyMask != nil && operation != "update" && operation != "upsert":
		return nil, false, invalid("a property mask is for update and upsert, not for %s", operation)
	}
	key, completed, err := s.db.mutationKey(entity.GetKey(), operation)
	if err != nil {
		return nil, false, err
	}
	d = s.draft(key)
	if err := s.allowed(d, operation); err != nil {
		return nil, false, err
	}
	if operation == "delete" {
		d.last, d.exists, d.properties = operation, false, nil
		return d, false, nil
	}
	if err := checkProperties(entity.Properties); err != nil {
		return nil, false, err
	}
	properties := entity.Properties
	if m.PropertyMask != nil {
		if properties, err = mask(d.current(), properties, m.PropertyMask.Paths); err != nil {
			return nil, false, err
		}
	}
	d.last, d.exists, d.properties = operation, true, properties
	return d, completed, nil
}

func (s *draftSet) draft(key storedKey) *draft {
	id := key.id()
	if d := s.byID[id]; d != nil {
		return d
	}
	d := &draft{key: key}
	d.before, d.existed = s.db.get(key, s.db.lastCommit)
	d.exists = d.existed
	s.byID[id] = d
	s.order = append(s.order, d)
	return d
}

// current returns the entity's properties as this commit has them.
func (d *draft) current() map[string]*pb.Value {
	if d.exists && d.last == "" {
		return d.before.properties()
	}
	return d.properties
}

// allowed checks an operation against what the entity is and what the same
// commit did to it.
func (s *draftSet) allowed(d *draft, operation string) error {
	switch {
	case d.last != "" && !s.atomic:
		return invalid("A non-transactional commit may not contain multiple mutations affecting the same entity.")
	case operation == "insert" && d.last != "" && d.last != "delete",
		operation == "update" && d.last == "delete":
		return invalid("Cannot %s then %s an entity in the same request.", d.last, operation)
	case operation == "insert" && d.exists:
		return status.Error(codes.AlreadyExists, "entity already exists")
	case operation == "update" && !d.exists:
		return status.Error(codes.NotFound, "no entity to update")
	}
	return nil
}

// mutationKey checks a mutation's key, and gives an id to an incomplete one.
func (db *database) mutationKey(k *pb.Key, operation string) (key storedKey, completed bool, err error) {
	incomplete := operation == "insert" || operation == "upsert"
	if err := checkPath(k.GetPath(), incomplete); err != nil {
		return storedKey{}, false, err
	}
	if k.Path[len(k.Path)-1].IdType != nil {
		key, err = db.keyForm(k)
		return key, false, err
	}
	key, err = db.allocate(k)
	return key, true, err
}

// allocate completes a key with an id that no entity has, spread evenly as
// production spreads them. The ids have at most 53 bits, so that JavaScript
// clients keep them whole.
func (db *database) allocate(k *pb.Key) (storedKey, error) {
	last := k.Path[len(k.Path)-1]
	for {
		path := append([]*pb.Key_PathElement(nil), k.Path...)
		path[len(path)-1] = &pb.Key_PathElement{
			Kind:   last.Kind,
			IdType: &pb.Key_PathElement_Id{Id: 1 + db.ids.Int64N(1<<53-1)},
		}
		key, err := db.keyForm(&pb.Key{PartitionId: k.PartitionId, Path: path})
		if err != nil {
			return storedKey{}, err
		}
		if kind := db.kind(key.namespace, key.kind); kind == nil {
			return key, nil
		} else if _, taken := kind.records.Get(key.path); !taken {
			return key, nil
		}
	}
}

// checkProperties checks an entity's properties, and cuts its times to the
// microseconds that Datastore keeps.
func checkProperties(properties map[string]*pb.Value) error {
	for name, v := range properties {
		if name == "" || reserved(name) || len(name) > maxNameSize {
			return invalid("the property name %q is empty, reserved or longer than %d bytes", name, maxNameSize)
		}
		if err := checkValue(name, v); err != nil {
			return err
		}
	}
	return nil
}

func checkValue(name string, v *pb.Value) error {
	switch value := v.GetValueType().(type) {
	case nil:
		return invalid("the property %q has no value", name)
	case *pb.Value_StringValue:
		if !v.ExcludeFromIndexes && len(value.StringValue) > 1500 {
			return invalid("The value of property %q is longer than 1500 bytes.", name)
		}
	case *pb.Value_BlobValue:
		if !v.ExcludeFromIndexes && len(value.BlobValue) > 1500 {
			return invalid("The value of property %q is longer than 1500 bytes.", name)
		}
	case *pb.Value_TimestampValue:
		t := value.TimestampValue.AsTime().Truncate(time.Microsecond)
		v.ValueType = &pb.Value_TimestampValue{TimestampValue: timestamppb.New(t)}
	case *pb.Value_ArrayValue:
		for _, el := range value.ArrayValue.GetValues() {
			if el.GetArrayValue() != nil {
				return invalid("the property %q is an array of arrays", name)
			}
			if err := checkValue(name, el); err != nil {
				return err
			}
		}
	case *pb.Value_EntityValue:
		for sub, el := range value.EntityValue.GetProperties() {
			if err := checkValue(name+"."+sub, el); err != nil {
				return err
			}
		}
	}
	return nil
}

// mask returns the properties of before with those that the paths name taken
// from after: set, or removed where after does not have them.
func mask(before, after map[string]*pb.Value, paths []string) (map[string]*pb.Value, error) {
	result := make(map[string]*pb.Value, len(before))
	for name, v := range before {
		result[name] = v
	}
	for _, p := range paths {
		names, err := splitPath(p)
		if err != nil {
			return nil, err
		}
		maskOne(result, after, names)
	}
	return result, nil
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
	for n, v := range old.GetProperties() {
		properties[n] = v
	}
	maskOne(properties, sub, names[1:])
	to[name] = &pb.Value{
		ExcludeFromIndexes: v.GetExcludeFromIndexes(),
		ValueType:          &pb.Value_EntityValue{EntityValue: &pb.Entity{Key: old.GetKey(), Properties: properties}},
	}
}

// splitPath splits a mask's path at its dots. A backslash escapes a dot or a
// backslash that belongs to a name.
func splitPath(p string) ([]string, error) {
	var names []string
	var name strings.Builder
	for i := 0; i < len(p); i++ {
		switch p[i] {
		case '\\':
			if i++; i == len(p) || p[i] != '.' && p[i] != '\\' {
				return nil, invalid("the property mask path %q has a stray backslash", p)
			}
			name.WriteByte(p[i])
		case '.':
			names = append(names, name.String())
			name.Reset()
		default:
			name.WriteByte(p[i])
		}
	}
	names = append(names, name.String())
	for _, n := range names {
		if n == "" || n == keyProperty {
			return nil, invalid("the property mask path %q has an empty name or __key__", p)
		}
	}
	return names, nil
}
