// Package metadata makes the entities of Datastore's reserved kinds. These describe a database: its
// namespaces, kinds, properties and statistics.
package metadata

import (
	"maps"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/query"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// The reserved kinds. Their entities are made when a query reads them, from the entities at the
// time of the read. In production, the statistics are some hours old.
const (
	namespaceKind     = "__namespace__"
	kindKind          = "__kind__"
	propertyKind      = "__property__"
	statTotalKind     = "__Stat_Total__"
	statNamespaceKind = "__Stat_Namespace__"
	statKindKind      = "__Stat_Kind__"
	statNsTotalKind   = "__Stat_Ns_Total__"
	statNsKindKind    = "__Stat_Ns_Kind__"
	totalName         = "total_entity_usage"
	// the ID in the key of the entity that describes the empty namespace; a name can't be empty
	defaultNamespaceID = 1
)

// Kinds has the kinds of a namespace by name.
type Kinds = btree.Map[string, *store.Kind]

// A Database is the database that the entities describe.
type Database struct {
	model.Database
	Namespaces *btree.Map[string, *Kinds]
	Scatter    int // n; one in n entities has the property __scatter__
	Lock       query.Pause
}

// A Span is a range of keys, given by the ordered forms of their paths. It includes From and
// excludes To. If To is empty, the span has no upper bound.
type Span struct{ From, To string }

// Describe makes the entities of the reserved kind name whose keys are in the span in. They
// describe the state at the time at, in microseconds since 1970. If the reserved kind is unknown,
// it makes none.
//
// Describe may stop after a number of entities, the parameter most. Then the result next is the
// path at which the next call has to start; otherwise next is empty. The caller has locked the
// database. Describe unlocks it for moments if other calls wait.
func (db *Database) Describe(namespace, name string, at int64, in Span, most int) (k *store.Kind, next string) {
	d := &description{
		db: db, namespace: namespace, at: at, in: in, most: most, kind: store.NewKind(name, new(store.Totals)),
	}
	everywhere := func(visit func(ns string) bool) { d.eachNamespace("", visit) }
	here := func(visit func(ns string) bool) { visit(namespace) }
	switch name {
	case namespaceKind:
		d.eachNamespace(d.first(), func(ns string) bool {
			path := namespacePath(ns)
			return d.skips(path) || !d.populated(ns) || d.put(nil, path)
		})
	case kindKind:
		d.eachKind(namespace, d.first(), func(name string, k *store.Kind) bool {
			path := element(kindKind, name)
			return d.skips(path) || !d.has(k) || d.put(nil, path)
		})
	case propertyKind:
		d.properties()
	case statTotalKind:
		d.total(statTotalKind, everywhere)
	case statNamespaceKind:
		d.eachNamespace(d.first(), func(ns string) bool {
			path := statName(statNamespaceKind, ns)
			if d.skips(path) {
				return true
			}
			all := d.measureAll(ns)
			return all.count == 0 ||
				d.put(all.properties(at, map[string]*pb.Value{"subject_namespace": entity.Text(ns)}), path)
		})
	case statKindKind:
		d.perKind(statKindKind, everywhere)
	case statNsTotalKind:
		d.total(statNsTotalKind, here)
	case statNsKindKind:
		d.perKind(statNsKindKind, here)
	}
	return d.kind, d.next
}

// A description is the state of one call of Describe.
type description struct {
	db        *Database
	namespace string
	at        int64
	in        Span
	most      int
	kind      *store.Kind
	next      string // the path where the next call starts
	ended     bool   // whether the whole span was described
	looked    int    // work since the last check for waiting callers
}

// first returns the least name that a kind or namespace in the span can have. It is "" if the span
// has no lower bound.
func (d *description) first() string {
	kind, name, ok := collate.FirstName(d.in.From)
	if ok && (kind == d.kind.Name || kind == kindKind && d.kind.Name == propertyKind) {
		return name
	}
	return ""
}

// skips reports whether the key with a path is outside the span.
func (d *description) skips(path ...*pb.Key_PathElement) bool {
	form := string(collate.AppendPath(nil, path))
	d.ended = d.in.To != "" && form >= d.in.To
	return d.ended || form < d.in.From
}

// put adds an entity to the result if its key is in the span. It returns false if the result is
// complete.
func (d *description) put(properties map[string]*pb.Value, path ...*pb.Key_PathElement) bool {
	of := &pb.PartitionId{ProjectId: d.db.Project, DatabaseId: d.db.ID, NamespaceId: d.namespace}
	key := model.Key{
		Namespace: d.namespace, Kind: d.kind.Name, Path: string(collate.AppendPath(nil, path)),
		PB: &pb.Key{PartitionId: of, Path: path},
	}
	f, err := entity.New(key.PB)
	if err == nil {
		f, err = f.With(properties)
	}
	if err != nil {
		panic("metadata: a description does not encode: " + err.Error())
	}
	d.kind.Put(key, store.Version{At: d.at, Created: d.at, Form: f}, d.db.Scatter)
	if d.kind.Records.Len() < d.most {
		return true
	}
	d.next = key.Path + "\x00"
	return false
}

func element(kind, name string) *pb.Key_PathElement {
	return &pb.Key_PathElement{Kind: kind, IdType: &pb.Key_PathElement_Name{Name: name}}
}

func namespacePath(ns string) *pb.Key_PathElement {
	if ns == "" {
		return &pb.Key_PathElement{Kind: namespaceKind, IdType: &pb.Key_PathElement_Id{Id: defaultNamespaceID}}
	}
	return element(namespaceKind, ns)
}

// statName returns the last element of the key of a statistic about a namespace or kind. Its name
// may be empty.
func statName(kind, name string) *pb.Key_PathElement {
	if name == "" {
		return &pb.Key_PathElement{Kind: kind, IdType: &pb.Key_PathElement_Id{Id: defaultNamespaceID}}
	}
	return element(kind, name)
}

// pauseEvery is the number of entities and names after which a description checks for waiting
// callers.
const pauseEvery = 64

// look counts work: 1 for an entity or a name, and more for slower steps. Each time the count
// exceeds pauseEvery, it checks for callers that wait for the database. If there are some, it
// pauses for them and returns true.
func (d *description) look(work int) (paused bool) {
	if d.looked += work; d.looked < pauseEvery {
		return false
	}
	d.looked = 0
	if !d.db.Lock.Wanted() {
		return false
	}
	d.db.Lock.Pause()
	return true
}

// each calls visit for the entries of a map, from a key on. Others may write to the map during
// pauses.
func each[V any](d *description, of *btree.Map[string, V], from string, visit func(string, V) bool) {
	for {
		var key string
		var v V
		found := false
		of.Ascend(from, func(k string, value V) bool {
			key, v, found = k, value, true
			return false
		})
		if !found || !visit(key, v) || d.ended {
			return
		}
		from = key + "\x00"
		d.look(1)
	}
}

// eachNamespace calls visit for the namespaces from a given one on, in order.
func (d *description) eachNamespace(from string, visit func(ns string) bool) {
	each(d, d.db.Namespaces, from, func(ns string, _ *Kinds) bool { return visit(ns) })
}

// eachKind calls visit for the kinds of a namespace from a given one on, in order.
func (d *description) eachKind(ns, from string, visit func(name string, k *store.Kind) bool) {
	if all, ok := d.db.Namespaces.Get(ns); ok {
		each(d, all, from, visit)
	}
}

// populated reports whether a namespace has entities.
func (d *description) populated(ns string) bool {
	found := false
	d.eachKind(ns, "", func(_ string, k *store.Kind) bool {
		found = d.has(k)
		return !found
	})
	return found
}

// has reports whether a kind has entities.
func (d *description) has(k *store.Kind) bool {
	found := false
	d.entities(k, func(store.Version) bool { found = true; return false })
	return found
}

func (d *description) entities(k *store.Kind, visit func(store.Version) bool) {
	records := k.Keys()
	for more := records.Seek(""); more; {
		v, ok := records.Record().At(d.at)
		if ok && !visit(v) {
			return
		}
		next := records.Key() + "\x00"
		const valuesPerRecord = 16
		if d.look(1 + v.Indexed()/valuesPerRecord) {
			records.Renew()
			more = records.Seek(next)
		} else {
			more = records.Next()
		}
	}
}

// properties makes an entity for each indexed property of each kind. The entity has the types of
// the property's values, called representations.
func (d *description) properties() {
	d.eachKind(d.namespace, d.first(), func(kind string, k *store.Kind) bool {
		of := element(kindKind, kind)
		if d.skips(of); d.ended {
			return false // the entities that describe its properties come after the span
		}
		forms := make(map[string]map[string]bool)
		d.entities(k, func(v store.Version) bool {
			represent(forms, "", v.Properties())
			return true
		})
		more := true
		for _, name := range slices.Sorted(maps.Keys(forms)) {
			path := element(propertyKind, name)
			if d.skips(of, path) {
				continue
			}
			var elements []*pb.Value
			for _, form := range slices.Sorted(maps.Keys(forms[name])) {
				elements = append(elements, entity.Text(form))
			}
			// The entity has all of the kind's indexed properties, so no other call has to read the
			// kind again.
			more = d.put(map[string]*pb.Value{"property_representation": entity.Array(elements)}, of, path)
		}
		return more
	})
}

// represent adds the indexed properties to forms, which has the types of the values of each
// property. The prefix is the path of the nested entity that has the properties, with a dot at its
// end. It is empty for the properties of the stored entity.
func represent(forms map[string]map[string]bool, prefix string, properties map[string]*pb.Value) {
	for name, v := range properties {
		values := []*pb.Value{v}
		if v.GetArrayValue() != nil {
			values = v.GetArrayValue().GetValues()
		}
		for _, el := range values {
			if e := el.GetEntityValue(); e != nil && !el.ExcludeFromIndexes {
				represent(forms, prefix+name+".", e.Properties)
			}
		}
		for _, value := range collate.EntriesOf(v) {
			if forms[prefix+name] == nil {
				forms[prefix+name] = make(map[string]bool)
			}
			forms[prefix+name][representation(value.Value)] = true
		}
	}
}

// representation returns the name of a value's type in Datastore's metadata queries, such as INT64.
func representation(v *pb.Value) string {
	switch v.ValueType.(type) {
	case *pb.Value_IntegerValue, *pb.Value_TimestampValue:
		return "INT64"
	case *pb.Value_DoubleValue:
		return "DOUBLE"
	case *pb.Value_BooleanValue:
		return "BOOLEAN"
	case *pb.Value_StringValue, *pb.Value_BlobValue:
		return "STRING"
	case *pb.Value_GeoPointValue:
		return "POINT"
	case *pb.Value_KeyValue:
		return "REFERENCE"
	}
	return "NULL"
}

// A measure has the number and the total size of some entities.
type measure struct{ count, bytes int64 }

func (d *description) measure(k *store.Kind) (m measure) {
	d.entities(k, func(v store.Version) bool {
		m.count++
		m.bytes += int64(len(v.Wire(false)))
		return true
	})
	return m
}

// measureAll returns the number and size of the entities in a namespace.
func (d *description) measureAll(ns string) (m measure) {
	d.eachKind(ns, "", func(_ string, k *store.Kind) bool {
		m = m.add(d.measure(k))
		return true
	})
	return m
}

func (m measure) add(o measure) measure { return measure{m.count + o.count, m.bytes + o.bytes} }

// properties returns the properties of a statistic: the four that all statistics have, and the
// parameter more. The parameter at is the time of the state that is described. The sizes do not
// include indexes, which the embedded Datastore does not measure.
func (m measure) properties(at int64, more map[string]*pb.Value) map[string]*pb.Value {
	properties := map[string]*pb.Value{
		"count":        entity.Integer(m.count),
		"bytes":        entity.Integer(m.bytes),
		"entity_bytes": entity.Integer(m.bytes),
		"timestamp":    {ValueType: &pb.Value_TimestampValue{TimestampValue: entity.Time(at)}},
	}
	maps.Copy(properties, more)
	return properties
}

func (d *description) total(kind string, namespaces func(visit func(ns string) bool)) {
	path := element(kind, totalName)
	if d.skips(path) {
		return
	}
	var all measure
	namespaces(func(ns string) bool {
		all = all.add(d.measureAll(ns))
		return true
	})
	d.put(all.properties(d.at, nil), path)
}

func (d *description) perKind(kind string, namespaces func(visit func(ns string) bool)) {
	from := d.first()
	all := make(map[string][]*store.Kind)
	namespaces(func(ns string) bool {
		d.eachKind(ns, from, func(name string, k *store.Kind) bool {
			all[name] = append(all[name], k)
			return true
		})
		return true
	})
	for _, name := range slices.Sorted(maps.Keys(all)) {
		path := element(kind, name)
		if d.skips(path) {
			continue
		}
		var m measure
		for _, k := range all[name] {
			m = m.add(d.measure(k))
		}
		if m.count > 0 && !d.put(m.properties(d.at, map[string]*pb.Value{"kind_name": entity.Text(name)}), path) {
			return
		}
	}
}
