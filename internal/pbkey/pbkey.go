// Package pbkey converts keys from Datastore's protocol. The Go client does not export its
// conversion.
package pbkey

import (
	"encoding/binary"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Of returns a key in the Go client's form, without project and database.
func Of(k *pb.Key) (key *datastore.Key) {
	for _, e := range k.GetPath() {
		key = &datastore.Key{Kind: e.GetKind(), ID: e.GetId(), Name: e.GetName(), Parent: key,
			Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}

// Text returns a text that only equal keys have. The client's String returns the same text for the
// ID 7 and the name "7".
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

// TextOf is [Text] for a key of the protocol.
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
