package keyspace

import "cloud.google.com/go/datastore"

// KeySize estimates the bytes that a key takes in a record.
func KeySize(k *datastore.Key) int {
	n := 0
	if k != nil { // a reference can be nil
		n = len(k.Namespace)
	}
	for e := k; e != nil; e = e.Parent {
		n += len(e.Kind) + len(e.Name) + 16
	}
	return n
}

// PropertiesSize estimates the bytes that properties take in a request.
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
