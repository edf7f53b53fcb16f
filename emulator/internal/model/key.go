package model

import (
	"cmp"
	"regexp"
	"strconv"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/internal/names"
)

const (
	maxKeySize      = 6 << 10 // the maximum size in bytes, from the page on Datastore's limits
	maxPathElements = 100

	// MaxName is the largest size of a kind or a name in bytes.
	MaxName = 1500
)

var (
	validProject  = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9:._-]{0,99}$`)
	validDatabase = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9-]{0,62})?$`)
	// as documented at the Go client's NewQuery
	validNamespace = regexp.MustCompile(`^[0-9A-Za-z._-]{0,100}$`)
)

// Invalid returns an error with the code INVALID_ARGUMENT.
func Invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, format, args...)
}

// Reserved reports whether a kind, a name or a property is reserved by Datastore.
func Reserved(s string) bool { return names.Reserved(s) }

// checkName returns an error if a name is empty, reserved or too long. The parameter what says what
// has the name. Like the other errors for keys, the error has the text of Google's emulators, which
// share checks with production.
func checkName(what, name string) error {
	if Reserved(name) {
		return Invalid("The %s %q is reserved.", what, name)
	}
	return checkSize(what, name)
}

// CheckPropertyName returns an error if a query can't have a property of this name.
func CheckPropertyName(name string) error { return checkSize("property.name", name) }

func checkSize(what, name string) error {
	switch {
	case name == "":
		return Invalid("The %s is the empty string.", what)
	case len(name) > MaxName:
		return Invalid("The %s is longer than %d bytes.", what, MaxName)
	}
	return nil
}

// A Key is a complete key of a request. Its project, database, namespace and path are within
// Datastore's rules.
type Key struct {
	Namespace string
	Kind      string
	Path      string  // the ordered form of the key's path, see package collate
	PB        *pb.Key // the key with project, database and namespace, even if the client left them out
}

// ID returns a text that identifies the key in its database.
func (k Key) ID() string { return k.Namespace + "\x00" + k.Path }

// A Database names the project and the database of a request.
type Database struct{ Project, ID string }

// Check returns an error if the project or the database can't have this name.
func (db Database) Check() error {
	switch {
	case db.Project == "":
		return Invalid("the project_id is empty")
	case !validProject.MatchString(db.Project):
		return Invalid("the project_id is %.110q, which can't be a project", db.Project)
	case !validDatabase.MatchString(db.ID):
		return Invalid("the database_id is %.110q: it is empty for the default database, and otherwise has letters, "+
			"digits and '-'", db.ID)
	}
	return nil
}

// Partition returns a partition of the request. It adds the request's project and database if they
// are missing, and returns an error if they differ.
func (db Database) Partition(p *pb.PartitionId) (*pb.PartitionId, error) {
	if got := p.GetProjectId(); got != "" && got != db.Project {
		return nil, Invalid("partition has project %q, the request has %q", got, db.Project)
	}
	if got := p.GetDatabaseId(); got != "" && got != db.ID {
		return nil, Invalid("partition has database %q, the request has %q", got, db.ID)
	}
	switch ns := p.GetNamespaceId(); {
	case Reserved(ns):
		return nil, Invalid("The namespace id %.110q is reserved.", ns)
	case !validNamespace.MatchString(ns):
		return nil, Invalid("Illegal string %.110q in namespace id.", ns)
	}
	return &pb.PartitionId{ProjectId: db.Project, DatabaseId: db.ID, NamespaceId: p.GetNamespaceId()}, nil
}

// CheckPath returns an error if an entity can't have the path. If incomplete is set, the last
// element may lack both ID and name.
func CheckPath(path []*pb.Key_PathElement, incomplete bool) error {
	for _, el := range path {
		if Reserved(el.GetKind()) {
			return Invalid("The kind %q is reserved.", el.Kind)
		}
		if Reserved(el.GetName()) {
			return Invalid("The key path element name %q is reserved.", el.GetName())
		}
	}
	return CheckReadPath(path, incomplete)
}

// CheckReadPath is CheckPath for keys that are only read. Such keys may be of the reserved kinds
// that describe the database.
func CheckReadPath(path []*pb.Key_PathElement, incomplete bool) error {
	switch {
	case len(path) == 0:
		return Invalid("Key path is empty.")
	case len(path) > maxPathElements:
		return Invalid("a key path has 1 to %d elements, this one has %d", maxPathElements, len(path))
	}
	for i, el := range path {
		if err := checkSize("kind", el.GetKind()); err != nil {
			return err
		}
		switch id := el.IdType.(type) {
		case *pb.Key_PathElement_Id:
			if id.Id == 0 {
				return Invalid("Key path id is invalid. Must not be zero.")
			}
		case *pb.Key_PathElement_Name:
			if err := checkSize("key path element name", id.Name); err != nil {
				return err
			}
		default:
			if !incomplete || i < len(path)-1 {
				return Invalid("Key path element must not be incomplete: [%s]", pathText(path))
			}
		}
	}
	return nil
}

// pathText returns a path as text, for an error.
func pathText(path []*pb.Key_PathElement) string {
	var elements []string
	for _, el := range path {
		text := el.GetKind() + ": " + el.GetName()
		if id := el.GetId(); id != 0 {
			text += strconv.FormatInt(id, 10)
		}
		elements = append(elements, text)
	}
	return strings.Join(elements, ", ")
}

// StoredKey checks the key of an entity to be written. The key must be complete.
func (db Database) StoredKey(k *pb.Key) (Key, error) {
	if err := CheckPath(k.GetPath(), false); err != nil {
		return Key{}, err
	}
	return db.CompleteKey(k)
}

// ReadKey checks the key of an entity to be read. The key must be complete.
func (db Database) ReadKey(k *pb.Key) (Key, error) {
	if err := CheckReadPath(k.GetPath(), false); err != nil {
		return Key{}, err
	}
	return db.CompleteKey(k)
}

// ValueKey checks and completes a key that is the value of a property. If k has no project, the
// result has this database's project, and also its ID if k names no database. Otherwise the result
// is k unchanged: such a key may be of any database. It may also be of a reserved kind.
func (db Database) ValueKey(k *pb.Key) (*pb.Key, error) {
	of := k.GetPartitionId()
	if of.GetProjectId() == "" {
		of = &pb.PartitionId{
			ProjectId: db.Project, DatabaseId: cmp.Or(of.GetDatabaseId(), db.ID), NamespaceId: of.GetNamespaceId(),
		}
		k = &pb.Key{PartitionId: of, Path: k.GetPath()}
	}
	if err := CheckReadPath(k.GetPath(), false); err != nil {
		return nil, err
	}
	return k, checkPartition(of)
}

// checkNestedKey checks the key of an entity that is the value of a property. It may be incomplete.
func (db Database) checkNestedKey(k *pb.Key) error {
	if k == nil {
		return nil
	}
	of := k.GetPartitionId()
	if err := checkPartition(&pb.PartitionId{ProjectId: cmp.Or(of.GetProjectId(), db.Project),
		DatabaseId: of.GetDatabaseId(), NamespaceId: of.GetNamespaceId()}); err != nil {
		return err
	}
	return CheckReadPath(k.Path, true)
}

// checkPartition returns an error if no database can have the partition.
func checkPartition(p *pb.PartitionId) error {
	if !validNamespace.MatchString(p.NamespaceId) {
		return Invalid("namespace %.110q is not up to 100 letters, digits, '.', '_' and '-'", p.NamespaceId)
	}
	return Database{p.ProjectId, p.DatabaseId}.Check()
}

// CompleteKey returns a key with its partition filled in. The path must have been checked.
func (db Database) CompleteKey(k *pb.Key) (Key, error) {
	partition, err := db.Partition(k.PartitionId)
	if err != nil {
		return Key{}, err
	}
	full := &pb.Key{PartitionId: partition, Path: k.Path}
	if n := proto.Size(full); n > maxKeySize {
		return Key{}, Invalid("a key has at most %d bytes, this one has %d", maxKeySize, n)
	}
	return Key{
		Namespace: partition.NamespaceId,
		Kind:      k.Path[len(k.Path)-1].Kind,
		Path:      string(collate.AppendPath(nil, k.Path)),
		PB:        full,
	}, nil
}
