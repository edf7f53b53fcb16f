// Package pbkey converts keys from messages of the Datastore API to the Go client's form. The
// client does not export its own conversion.
package pbkey

import (
	"encoding/binary"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Of returns a key in the Go client's form. This form has no project and no database.
func Of(k *pb.Key) (key *datastore.Key) {
	for _, e := range k.GetPath() {
		key = &datastore.Key{Kind: e.GetKind(), ID: e.GetId(), Name: e.GetName(), Parent: key,
			Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}

// Text returns a text for a key. Different keys have different texts, in contrast to the client's
// own String method, which returns the same text for the ID 7 and the name "7".
func Text(k *datastore.Key) string {
	var b []byte
	for e := k; e != nil; e = e.Parent {
		b = element(b, e.Kind, e.ID, e.Name)
	}
	if k != nil {
		b = append(b, k.Namespace...)
	}
	return string(b)
}

// TextOf returns the [Text] of a key that is a message of the Datastore API.
func TextOf(k *pb.Key) string {
	var b []byte
	for i := len(k.GetPath()) - 1; i >= 0; i-- {
		e := k.Path[i]
		b = element(b, e.GetKind(), e.GetId(), e.GetName())
	}
	return string(append(b, k.GetPartitionId().GetNamespaceId()...))
}

func element(b []byte, kind string, id int64, name string) []byte {
	b = binary.AppendUvarint(b, uint64(len(kind)))
	b = append(b, kind...)
	b = binary.AppendVarint(b, id)
	b = binary.AppendUvarint(b, uint64(len(name)))
	b = append(b, name...)
	return b
}
