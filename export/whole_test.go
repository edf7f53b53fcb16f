package export

import (
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/testbucket"
)

// TestWholeEntities checks the type of the records with which NewEntities exports whole entities in
// each format.
func TestWholeEntities(t *testing.T) {
	bucket := testbucket.New().Open()
	e := Entity{Key: datastore.IDKey("K", 1, nil)}
	for _, o := range []*Options{nil, {}, {Format: JSONLines}, {Format: JSON}, {Format: CSV}, {Format: Avro},
		{Format: Parquet}} {
		x, err := NewEntities("entities", bucket, o)
		if err != nil {
			t.Fatal(err)
		}
		var record any = e
		if columns := []Format{CSV, Avro, Parquet}; slices.Contains(columns, x.opts.Format) {
			record = Row{"key", "{}"}
		}
		if _, err := x.coder.encode(record); err != nil {
			t.Errorf("%s: %v", x.opts.Format, err)
		}
	}
	for want, e := range map[string]Entity{
		"chan int":      {Key: e.Key, Properties: datastore.PropertyList{{Name: "p", Value: make(chan int)}}},
		"invalid UTF-8": {Stored: &pb.Entity{Properties: map[string]*pb.Value{"p\xff": {}}}},
	} {
		if text, err := e.MarshalJSON(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s, %v, want an error with %q", text, err, want)
		}
	}
}

// TestReferences checks that the project and the database are removed from an entity's own key, and
// from keys of the same database in its properties. Other keys must keep theirs.
func TestReferences(t *testing.T) {
	key := func(project, database, namespace string) *pb.Key {
		return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: project, DatabaseId: database, NamespaceId: namespace}}
	}
	to := func(k *pb.Key) *pb.Value { return &pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: k}} }
	e := exported(&pb.Entity{Key: key("p", "d", "n"), Properties: map[string]*pb.Value{
		"same": to(key("p", "d", "")), "near": to(key("p", "d", "n")), "database": to(key("p", "e", "")),
		"project": to(key("q", "d", "")),
		"inner": {ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Properties: map[string]*pb.Value{
			"a": to(key("p", "d", ""))}}}},
		"list": {ValueType: &pb.Value_ArrayValue{
			ArrayValue: &pb.ArrayValue{Values: []*pb.Value{to(key("p", "d", ""))}},
		}},
	}})
	for name, want := range map[string]*pb.PartitionId{
		"same": nil, "near": {NamespaceId: "n"}, "database": {ProjectId: "p", DatabaseId: "e"},
		"project": {ProjectId: "q", DatabaseId: "d"},
	} {
		if got := e.Properties[name].GetKeyValue().GetPartitionId(); got.String() != want.String() {
			t.Errorf("the reference %s is to %v, want %v", name, got, want)
		}
	}
	if got := e.Properties["inner"].GetEntityValue().Properties["a"].GetKeyValue().GetPartitionId(); got != nil {
		t.Errorf("the reference in an entity is to %v, want none", got)
	}
	if got := e.Properties["list"].GetArrayValue().Values[0].GetKeyValue().GetPartitionId(); got != nil {
		t.Errorf("the reference in a list is to %v, want none", got)
	}
	if got := e.Key.GetPartitionId(); got.GetProjectId()+got.GetDatabaseId() != "" || got.GetNamespaceId() != "n" {
		t.Errorf("the key has %v", got)
	}
}
