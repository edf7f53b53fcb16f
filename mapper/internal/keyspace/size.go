package keyspace

import (
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// KeySize estimates the bytes that a key takes in a record.
func KeySize(k *datastore.Key) int {
	n := 0
	if k != nil { // a property may hold a nil key
		n = len(k.Namespace)
	}
	for e := k; e != nil; e = e.Parent {
		n += len(e.Kind) + len(e.Name) + 16
	}
	return n
}

// PropertiesSize estimates how many bytes properties take in a request to the database.
func PropertiesSize(properties []datastore.Property) int {
	n := 0
	for _, p := range properties {
		n += len(p.Name) + valueSize(p.Value) + 8
	}
	return n
}

func valueSize(v any) int {
	switch v := v.(type) {
	case string:
		return len(v)
	case []byte:
		return len(v)
	case *datastore.Key:
		return KeySize(v)
	case []any:
		n := 0
		for _, el := range v {
			n += valueSize(el) + 4
		}
		return n
	case *datastore.Entity:
		if v == nil {
			return 0
		}
		return PropertiesSize(v.Properties)
	}
	return 12
}

// EntitySize estimates how many bytes a stored entity takes in a request to the database.
func EntitySize(e *pb.Entity) int {
	n := 0
	for name, v := range e.GetProperties() {
		n += len(name) + storedSize(v) + 8
	}
	return n
}

func storedSize(v *pb.Value) int {
	switch v := v.GetValueType().(type) {
	case *pb.Value_StringValue:
		return len(v.StringValue)
	case *pb.Value_BlobValue:
		return len(v.BlobValue)
	case *pb.Value_KeyValue:
		n := len(v.KeyValue.GetPartitionId().GetNamespaceId())
		for _, e := range v.KeyValue.GetPath() {
			n += len(e.GetKind()) + len(e.GetName()) + 16
		}
		return n
	case *pb.Value_ArrayValue:
		n := 0
		for _, el := range v.ArrayValue.GetValues() {
			n += storedSize(el) + 4
		}
		return n
	case *pb.Value_EntityValue:
		return EntitySize(v.EntityValue)
	}
	return 12
}
