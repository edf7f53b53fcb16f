// Package pbkey reads keys as Datastore's protocol has them, which the Go client does for itself only.
package pbkey

import (
	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
)

// Of returns a key as the Go client has it: without its project and database.
func Of(k *pb.Key) (key *datastore.Key) {
	for _, e := range k.GetPath() {
		key = &datastore.Key{Kind: e.GetKind(), ID: e.GetId(), Name: e.GetName(), Parent: key, Namespace: k.GetPartitionId().GetNamespaceId()}
	}
	return key
}
