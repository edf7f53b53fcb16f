package dsemu

import (
	"maps"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/collate"
	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// The reserved kinds that describe a database. Their entities are made when they
// are asked for, from what is there at the time of the read; production's
// statistics are some hours old.
const (
	namespaceKind      = "__namespace__"
	kindKind           = "__kind__"
	propertyKind       = "__property__"
	statTotalKind      = "__Stat_Total__"
	statNamespaceKind  = "__Stat_Namespace__"
	statKindKind       = "__Stat_Kind__"
	statNsTotalKind    = "__Stat_Ns_Total__"
	statNsKindKind     = "__Stat_Ns_Kind__"
	totalName          = "total_entity_usage"
	defaultNamespaceID = 1 // the key of the empty namespace has an id, since a name can't be empty
)

// describe returns one of the reserved kinds, which is empty if it is unknown.
// The database is locked.
func (db *database) describe(namespace, name string, at int64) *store.Kind {
	d := &description{db: db, namespace: namespace, at: at, kind: store.NewKind(name, new(store.Totals))}
	switch name {
	case namespaceKind:
		for _, ns := range d.namespaces() {
			d.put(nil, namespacePath(ns))
		}
	case kindKind:
		for _, k := range d.kinds(namespace) {
			d.put(nil, element(kindKind, k))
		}
	case propertyKind:
		d.properties()
	case statTotalKind:
		d.total(statTotalKind, d.namespaces())
	case statNamespaceKind:
		for _, ns := range d.namespaces() {
			all := d.measure(ns, d.kinds(ns))
			d.put(all.properties(at, map[string]*pb.Value{"subject_namespace": entity.Text(ns)}), statName(statNamespaceKind, ns))
		}
	case statKindKind:
		d.perKind(statKindKind, d.namespaces())
	case statNsTotalKind:
		d.total(statNsTotalKind, []string{namespace})
	case statNsKindKind:
		d.perKind(statNsKindKind, []string{namespace})
	}
	return d.kind
}

// A description is a reserved kind that is being made.
type description struct {
	db        *database
	namespace string
	at        int64
	kind      *store.Kind
}

func (d *description) put(properties map[string]*pb.Value, path ...*pb.Key_PathElement) {
	key := model.Key{
		Namespace: d.namespace, Kind: d.kind.Name, Path: string(collate.AppendPath(nil, path)),
		PB: &pb.Key{PartitionId: &pb.PartitionId{ProjectId: d.db.Project, DatabaseId: d.db.ID, NamespaceId: d.namespace}, Path: path},
	}
	f, err := entity.New(key.PB)
	if err == nil {
		f, err = f.With(properties)
	}
	if err != nil {
		panic("dsemu: a description does not encode: " + err.Error())
	}
	d.kind.Put(key, store.Version{At: d.at, Created: d.at, Form: f}, d.db.opts.Scatter)
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

// statName is the key of a statistic of a name, which may be empty.
func statName(kind, name string) *pb.Key_PathElement {
	if name == "" {
		return &pb.Key_PathElement{Kind: kind, IdType: &pb.Key_PathElement_Id{Id: defaultNamespaceID}}
	}
	return element(kind, name)
}

// namespaces returns the namespaces that have entities.
func (d *description) namespaces() []string {
	var all []string
	for _, ns := range slices.Sorted(maps.Keys(d.db.namespaces)) {
		if len(d.kinds(ns)) > 0 {
			all = append(all, ns)
		}
	}
	return all
}

// kinds returns the kinds of a namespace that have entities.
func (d *description) kinds(namespace string) []string {
	var all []string
	for _, name := range slices.Sorted(maps.Keys(d.db.namespaces[namespace])) {
		found := false
		d.entities(namespace, name, func(store.Version) bool { found = true; return false })
		if found {
			all = append(all, name)
		}
	}
	return all
}

// pauseEvery is after how many records a description looks whether somebody waits.
const pauseEvery = 64

func (d *description) entities(namespace, kind string, visit func(store.Version) bool) {
	records := d.db.kind(namespace, kind).Keys()
	for n, more := 1, records.Seek(""); more; n++ {
		if v, ok := records.Record().At(d.at); ok && !visit(v) {
			return
		}
		next := records.Key() + "\x00"
		if n%pauseEvery == 0 && d.db.mu.Wanted() {
			d.db.mu.Pause()
			records.Renew()
			more = records.Seek(next)
		} else {
			more = records.Next()
		}
	}
}

// properties makes an entity for each indexed property of each kind, with the
// representations of its values.
func (d *description) properties() {
	for _, kind := range d.kinds(d.namespace) {
		forms := make(map[string]map[string]bool)
		d.entities(d.namespace, kind, func(v store.Version) bool {
			represent(forms, "", v.Properties())
			return true
		})
		for _, name := range slices.Sorted(maps.Keys(forms)) {
			var elements []*pb.Value
			for _, form := range slices.Sorted(maps.Keys(forms[name])) {
				elements = append(elements, entity.Text(form))
			}
			d.put(map[string]*pb.Value{"property_representation": entity.Array(elements)}, element(kindKind, kind), element(propertyKind, name))
		}
	}
}

// represent notes the names and representations of indexed properties.
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

// representation names the type of a value as the page on metadata queries does.
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

// A measure is how much there is of something.
type measure struct{ count, bytes int64 }

func (d *description) measure(namespace string, kinds []string) measure {
	var m measure
	for _, kind := range kinds {
		d.entities(namespace, kind, func(v store.Version) bool {
			m.count++
			m.bytes += int64(len(v.Wire(false)))
			return true
		})
	}
	return m
}

func (m measure) add(o measure) measure { return measure{m.count + o.count, m.bytes + o.bytes} }

// properties returns the properties that all statistics have. Bytes are those of
// the entities; the embedded Datastore does not measure its indexes.
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

func (d *description) total(kind string, namespaces []string) {
	var all measure
	for _, ns := range namespaces {
		all = all.add(d.measure(ns, d.kinds(ns)))
	}
	d.put(all.properties(d.at, nil), element(kind, totalName))
}

func (d *description) perKind(kind string, namespaces []string) {
	all := make(map[string]measure)
	for _, ns := range namespaces {
		for _, name := range d.kinds(ns) {
			all[name] = all[name].add(d.measure(ns, []string{name}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(all)) {
		d.put(all[name].properties(d.at, map[string]*pb.Value{"kind_name": entity.Text(name)}), element(kind, name))
	}
}
