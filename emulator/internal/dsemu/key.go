package dsemu

import (
	"regexp"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const (
	maxKeySize      = 6 << 10 // bytes, as the limits page of Datastore has it
	maxPathElements = 100
	maxNameSize     = 1500 // bytes of a kind or a name
)

var validNamespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`) // as the client's NewQuery documents it

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// reserved reports whether Datastore keeps a kind, name or property for itself.
func reserved(s string) bool {
	return len(s) >= 4 && strings.HasPrefix(s, "__") && strings.HasSuffix(s, "__")
}

// storedKey is a key as the store knows it.
type storedKey struct {
	namespace string
	kind      string
	path      string  // ordered form
	pb        *pb.Key // with its whole partition, whatever the client sent
}

// id tells keys of all namespaces apart.
func (k storedKey) id() string { return k.namespace + "\x00" + k.path }

// checkPartition completes a partition with the request's project and database.
func (db *database) checkPartition(p *pb.PartitionId) (*pb.PartitionId, error) {
	if got := p.GetProjectId(); got != "" && got != db.project {
		return nil, invalid("partition has project %q, the request has %q", got, db.project)
	}
	if got := p.GetDatabaseId(); got != "" && got != db.id {
		return nil, invalid("partition has database %q, the request has %q", got, db.id)
	}
	if ns := p.GetNamespaceId(); reserved(ns) || !validNamespace.MatchString(ns) {
		return nil, invalid("namespace %.110q is reserved, or not up to 100 letters, digits, '.', '_' and '-'", ns)
	}
	return &pb.PartitionId{ProjectId: db.project, DatabaseId: db.id, NamespaceId: p.GetNamespaceId()}, nil
}

// checkPath reports what is wrong with a path of an entity. Only the last element
// of one that may be incomplete can lack its id and name.
func checkPath(path []*pb.Key_PathElement, incomplete bool) error {
	for _, el := range path {
		if reserved(el.GetKind()) {
			return invalid("The kind %q is reserved.", el.Kind)
		}
		if reserved(el.GetName()) {
			return invalid("The key path element name %q is reserved.", el.GetName())
		}
	}
	return checkForm(path, incomplete)
}

// checkForm is checkPath for keys that are only read: they can be those of
// reserved kinds, which describe the database.
func checkForm(path []*pb.Key_PathElement, incomplete bool) error {
	if len(path) == 0 || len(path) > maxPathElements {
		return invalid("a key path has 1 to %d elements, this one has %d", maxPathElements, len(path))
	}
	for i, el := range path {
		if el.GetKind() == "" || len(el.GetKind()) > maxNameSize {
			return invalid("the kind of a key path element has 1 to %d bytes, this one has %d", maxNameSize, len(el.GetKind()))
		}
		switch id := el.IdType.(type) {
		case *pb.Key_PathElement_Id:
			if id.Id == 0 {
				return invalid("a key path element has the id 0")
			}
		case *pb.Key_PathElement_Name:
			if id.Name == "" || len(id.Name) > maxNameSize {
				return invalid("the name of a key path element has 1 to %d bytes, this one has %d", maxNameSize, len(id.Name))
			}
		default:
			if !incomplete || i < len(path)-1 {
				return invalid("key path element %d of %d has neither id nor name", i+1, len(path))
			}
		}
	}
	return nil
}

// storedKey checks a complete key.
func (db *database) storedKey(k *pb.Key) (storedKey, error) {
	if err := checkPath(k.GetPath(), false); err != nil {
		return storedKey{}, err
	}
	return db.keyForm(k)
}

// readKey checks a complete key that is only read.
func (db *database) readKey(k *pb.Key) (storedKey, error) {
	if err := checkForm(k.GetPath(), false); err != nil {
		return storedKey{}, err
	}
	return db.keyForm(k)
}

// keyForm completes the partition of a key whose path was checked.
func (db *database) keyForm(k *pb.Key) (storedKey, error) {
	partition, err := db.checkPartition(k.PartitionId)
	if err != nil {
		return storedKey{}, err
	}
	full := &pb.Key{PartitionId: partition, Path: k.Path}
	if n := proto.Size(full); n > maxKeySize {
		return storedKey{}, invalid("a key has at most %d bytes, this one has %d", maxKeySize, n)
	}
	return storedKey{
		namespace: partition.NamespaceId,
		kind:      k.Path[len(k.Path)-1].Kind,
		path:      string(appendPath(nil, k.Path)),
		pb:        full,
	}, nil
}
