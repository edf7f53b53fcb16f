package conformance

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/genproto/googleapis/type/latlng"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/internal/testflag"
)

// meant has values of all types by names. A name that ends in an exclamation mark has an unindexed
// value.
var meant = func() map[string]*pb.Value {
	all := map[string]*pb.Value{
		"text": value("x"), "integer": value(1), "negative": value(-1), "huge": value(1 << 62),
		"boolean": value(true), "double": value(1.5),
		"blob": value([]byte("x")), "time": value(time.Unix(5, 0)), "null": value(nil),
		"entity": value(props("a", 1)), "nothing": value(props()),
		"key": value(&pb.Key{PartitionId: &pb.PartitionId{ProjectId: "p"},
			Path: []*pb.Key_PathElement{named("K", "k")}}),
		"point": {ValueType: &pb.Value_GeoPointValue{GeoPointValue: &latlng.LatLng{Latitude: 1, Longitude: 2}}},
		"list":  value([]any{}), "doubles": value([]any{1.0, 2.0}), "texts": value([]any{"x"}),
		"user": value(props("email", unindexed("a@example.com"), "auth_domain", unindexed("example.com"))),
		"user2": value(props("email", unindexed("a@example.com"),
			"auth_domain", unindexed("example.com"), "user_id", unindexed("7"))),
		"user3": value(props("email", unindexed("a@example.com"),
			"auth_domain", unindexed("example.com"), "nickname", unindexed("a"))),
		"user4": value(props("email", "a@example.com", "auth_domain", unindexed("example.com"))),
		"user5": value(props("email", unindexed("a@example.com"))),
		"user6": value(props("email", unindexed(1), "auth_domain", unindexed("example.com"))),
	}
	for name, v := range maps.Clone(all) {
		v = proto.Clone(v).(*pb.Value)
		v.ExcludeFromIndexes = true
		all[name+"!"] = v
	}
	return all
}()

// taken lists, for each meaning, the names in meant of the values that may have it. No other value
// may have it.
var taken = func() map[int32][]string {
	text := []string{"text", "text!"}
	integer := []string{"huge", "huge!", "integer", "integer!", "negative", "negative!"}
	return map[int32][]string{
		1: text, 2: text, 3: text, 4: text, 5: text, 6: text, 8: text, 10: text, 11: text, 12: text, 17: text,
		7:  {"huge", "huge!"}, // as times, these are outside of the allowed range
		13: {"integer", "integer!"},
		15: {"text!"},
		16: {"blob", "blob!"},
		20: {"user", "user!", "user2", "user2!"},
		22: {"blob!"},
		29: integer, 30: integer,
		31: {"doubles!"},
	}
}()

// TestMeanings writes values of all types with all meanings: as properties, as elements of arrays,
// and in nested entities. It checks that the embedded Datastore refuses what Google's Firestore
// emulator refuses, with the same message. Accepted values must be read back unchanged. In a
// usual run, the emulator gets each meaning in only one of these places.
func TestMeanings(t *testing.T) {
	texts := make(map[string]string) // messages of the embedded Datastore, which runs first
	for _, product := range []string{"embedded", "firestore"} {
		t.Run(product, func(t *testing.T) {
			e := newEnv(t, product).empty(t)
			some := func(int) bool { return true }
			if product != "embedded" {
				some = testflag.Part(t, 3)
			}
			for m := int32(-1); m <= 41; m++ {
				if m == 0 {
					continue
				}
				for i, level := range []string{"property", "element", "inner"} {
					if !some(int(m) + i + 1) {
						continue
					}
					var got []string
					for name, v := range meant {
						v = proto.Clone(v).(*pb.Value)
						v.Meaning = m
						outer := v
						switch {
						case level == "element" && v.GetArrayValue() != nil:
							continue
						case level == "element":
							outer = value([]any{v})
						case level == "inner":
							outer = value(props("v", v))
						}
						_, err := e.commit(upsert(e.name("M", "m"), map[string]*pb.Value{"v": outer}))
						if err == nil {
							got = append(got, name)
							if m == 16 && name == "blob" {
								v.Meaning = 0 // the meaning of an indexed blob is not stored
							}
							resp, err := e.raw.Lookup(t.Context(), &pb.LookupRequest{
								ProjectId: e.project, Keys: []*pb.Key{e.name("M", "m")},
							})
							if err != nil || !proto.Equal(resp.Found[0].Entity.Properties["v"], outer) {
								t.Errorf("meaning %d of %s as %s does not come back the same: %v, %v", m, name, level,
									resp, err)
							}
							continue
						}
						id, text := fmt.Sprint(m, name), status.Convert(err).Message()
						switch {
						case status.Code(err) != codes.InvalidArgument && (m <= 31 || product != "firestore"):
							t.Errorf("meaning %d of %s: %v, want InvalidArgument", m, name, err)
						case level != "property":
						case product == "embedded":
							texts[id] = text
						// the emulator's message differs
						case m > 31, m == 18, m == 23, name == "user6", name == "user6!":
						case text != texts[id]:
							t.Errorf("meaning %d of %s: %q, the embedded one says %q", m, name, text, texts[id])
						}
					}
					slices.Sort(got)
					want := slices.Clone(taken[m])
					if level == "element" {
						want = slices.DeleteFunc(want, func(name string) bool {
							return meant[name].GetArrayValue() != nil
						})
					}
					if !slices.Equal(got, want) {
						t.Errorf("meaning %d as %s is taken of %v, want %v", m, level, got, want)
					}
				}
			}
		})
	}
}

// TestKeysOfOthers stores keys of other projects, databases and namespaces as values. It checks
// that filters, orders and groups distinguish them. A stored key without a project is of its
// entity's project and database.
func TestKeysOfOthers(t *testing.T) {
	for _, product := range []string{"embedded", "firestore"} {
		t.Run(product, func(t *testing.T) {
			e := newEnv(t, product).empty(t)
			of := func(project, database, namespace string) *pb.Key {
				return &pb.Key{PartitionId: &pb.PartitionId{ProjectId: project, DatabaseId: database,
					NamespaceId: namespace},
					Path: []*pb.Key_PathElement{named("K", "k")}}
			}
			keys := map[string]*pb.Key{
				"own": of(e.project, "", ""), "short": of("", "", ""), "namespace": of(e.project, "", "n"),
				"database":            of(e.project, "db2", ""),
				"databases-namespace": of(e.project, "db2", "n"), "before": of("a-project", "zz", "zz"),
				"after": of("z-project", "", ""),
			}
			for name, k := range keys {
				e.put("R", name, "v", k)
			}
			names := func(q *pb.Query) string {
				resp, err := e.runQuery(q)
				e.must(err)
				var all []string
				for _, r := range resp.Batch.EntityResults {
					all = append(all, last(r.Entity.Key))
				}
				return strings.Join(all, " ")
			}
			kind := []*pb.KindExpression{{Name: "R"}}
			for name, k := range keys {
				want := name
				if name == "own" || name == "short" {
					want = "own short"
				}
				if got := names(&pb.Query{Kind: kind, Filter: filterOn("v", pb.PropertyFilter_EQUAL, k)}); got != want {
					t.Errorf("the key of %s equals the key of %s", name, got)
				}
			}
			property := &pb.PropertyReference{Name: "v"}
			order := &pb.Query{Kind: kind, Order: []*pb.PropertyOrder{{Property: property}}}
			if got, want := names(order), "before own short namespace database databases-namespace after"; got != want {
				t.Errorf("the order is %s, want %s", got, want)
			}
			groups := &pb.Query{
				Kind: kind, Projection: []*pb.Projection{{Property: property}},
				DistinctOn: []*pb.PropertyReference{property},
			}
			if got, want := names(groups), "before own namespace database databases-namespace after"; got != want {
				t.Errorf("the groups are %s, want %s", got, want)
			}
			resp, err := e.raw.Lookup(t.Context(), &pb.LookupRequest{
				ProjectId: e.project, Keys: []*pb.Key{e.name("R", "short")},
			})
			e.must(err)
			key := resp.Found[0].Entity.Properties["v"].GetKeyValue()
			if got := key.GetPartitionId().GetProjectId(); got != e.project {
				t.Errorf("a key without a project is stored with %q, want the entity's own", got)
			}
		})
	}
}
