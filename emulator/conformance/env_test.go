package conformance

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/iterator"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// outcome returns an error's code as text. The code is the same in all Datastores, unlike the
// message.
func outcome(err error) string {
	if errors.Is(err, datastore.ErrConcurrentTransaction) {
		return "Aborted"
	}
	return status.Code(err).String()
}

// A stop is the panic by which env.must ends a case. It has the error of the case's preparation.
type stop struct{ err error }

// must ends the case if the preparation of the case failed. The outcome of the case is then this
// error.
func (e *env) must(err error) {
	if err != nil {
		panic(stop{err})
	}
}

// outcome runs a case, and returns its result.
func (c conformanceCase) outcome(e *env) (result string) {
	defer func() {
		if r := recover(); r != nil {
			s, ok := r.(stop)
			if !ok {
				panic(r)
			}
			result = outcome(s.err)
		}
	}()
	return c.run(e)
}

func (e *env) name(kind, name string) *pb.Key {
	return &pb.Key{
		PartitionId: &pb.PartitionId{ProjectId: e.project},
		Path:        []*pb.Key_PathElement{{Kind: kind, IdType: &pb.Key_PathElement_Name{Name: name}}},
	}
}

// value converts a Go value to a value of the protocol.
func value(v any) *pb.Value {
	switch v := v.(type) {
	case nil:
		return &pb.Value{ValueType: &pb.Value_NullValue{}}
	case bool:
		return &pb.Value{ValueType: &pb.Value_BooleanValue{BooleanValue: v}}
	case int:
		return &pb.Value{ValueType: &pb.Value_IntegerValue{IntegerValue: int64(v)}}
	case float64:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: v}}
	case string:
		return &pb.Value{ValueType: &pb.Value_StringValue{StringValue: v}}
	case []byte:
		return &pb.Value{ValueType: &pb.Value_BlobValue{BlobValue: v}}
	case time.Time:
		return &pb.Value{ValueType: &pb.Value_TimestampValue{TimestampValue: timestamppb.New(v)}}
	case *pb.Key:
		return &pb.Value{ValueType: &pb.Value_KeyValue{KeyValue: v}}
	case map[string]*pb.Value:
		return &pb.Value{ValueType: &pb.Value_EntityValue{EntityValue: &pb.Entity{Properties: v}}}
	case []any:
		array := new(pb.ArrayValue)
		for _, el := range v {
			array.Values = append(array.Values, value(el))
		}
		return &pb.Value{ValueType: &pb.Value_ArrayValue{ArrayValue: array}}
	case *pb.Value:
		return v
	}
	panic(fmt.Sprintf("no value: %T", v))
}

func unindexed(v any) *pb.Value {
	u := value(v)
	u.ExcludeFromIndexes = true
	return u
}

// props returns properties for alternating names and values.
func props(kv ...any) map[string]*pb.Value {
	m := make(map[string]*pb.Value)
	for i := 0; i < len(kv); i += 2 {
		m[kv[i].(string)] = value(kv[i+1])
	}
	return m
}

// show returns a value as text, with an exclamation mark if it is not indexed.
func show(v *pb.Value) string {
	if v.GetExcludeFromIndexes() {
		return showPlain(v) + "!"
	}
	return showPlain(v)
}

func showPlain(v *pb.Value) string {
	switch t := v.GetValueType().(type) {
	case nil:
		return "nothing"
	case *pb.Value_NullValue:
		return "null"
	case *pb.Value_BooleanValue:
		return fmt.Sprint(t.BooleanValue)
	case *pb.Value_IntegerValue:
		return fmt.Sprint(t.IntegerValue)
	case *pb.Value_DoubleValue:
		if t.DoubleValue == math.Trunc(t.DoubleValue) && !math.IsInf(t.DoubleValue, 0) {
			return fmt.Sprintf("%.1f", t.DoubleValue)
		}
		return fmt.Sprint(t.DoubleValue)
	case *pb.Value_StringValue:
		return fmt.Sprintf("%q", t.StringValue)
	case *pb.Value_BlobValue:
		return fmt.Sprintf("blob %x", t.BlobValue)
	case *pb.Value_TimestampValue:
		return t.TimestampValue.AsTime().Format(time.RFC3339Nano)
	case *pb.Value_KeyValue:
		return "key " + last(t.KeyValue)
	case *pb.Value_EntityValue:
		return showAll(t.EntityValue.GetProperties())
	case *pb.Value_ArrayValue:
		var all []string
		for _, el := range t.ArrayValue.GetValues() {
			all = append(all, show(el))
		}
		return "[" + strings.Join(all, " ") + "]"
	}
	return fmt.Sprintf("%T", v.GetValueType())
}

func showAll(properties map[string]*pb.Value) string {
	var all []string
	for name, v := range properties {
		all = append(all, name+"="+show(v))
	}
	slices.Sort(all)
	return "{" + strings.Join(all, " ") + "}"
}

// last returns the name or the ID in the last element of a key's path.
func last(k *pb.Key) string {
	if len(k.GetPath()) == 0 {
		return "?"
	}
	el := k.Path[len(k.Path)-1]
	if el.GetName() != "" {
		return el.GetName()
	}
	return fmt.Sprint(el.GetId())
}

// commit commits mutations without a transaction.
func (e *env) commit(mutations ...*pb.Mutation) (*pb.CommitResponse, error) {
	return e.raw.Commit(e.Context(), &pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_NON_TRANSACTIONAL,
		Mutations: mutations})
}

// commitAtomically commits mutations in a transaction of their own.
func (e *env) commitAtomically(mutations ...*pb.Mutation) (*pb.CommitResponse, error) {
	return e.raw.Commit(e.Context(), &pb.CommitRequest{ProjectId: e.project, Mode: pb.CommitRequest_TRANSACTIONAL,
		Mutations:           mutations,
		TransactionSelector: &pb.CommitRequest_SingleUseTransaction{SingleUseTransaction: new(pb.TransactionOptions)}})
}

func (e *env) put(kind, name string, kv ...any) {
	e.Helper()
	_, err := e.commit(upsert(e.name(kind, name), props(kv...)))
	e.must(err)
}

func upsert(key *pb.Key, properties map[string]*pb.Value) *pb.Mutation {
	return &pb.Mutation{Operation: &pb.Mutation_Upsert{Upsert: &pb.Entity{Key: key, Properties: properties}}}
}

func insert(key *pb.Key, properties map[string]*pb.Value) *pb.Mutation {
	return &pb.Mutation{Operation: &pb.Mutation_Insert{Insert: &pb.Entity{Key: key, Properties: properties}}}
}

func update(key *pb.Key, properties map[string]*pb.Value) *pb.Mutation {
	return &pb.Mutation{Operation: &pb.Mutation_Update{Update: &pb.Entity{Key: key, Properties: properties}}}
}

func remove(key *pb.Key) *pb.Mutation {
	return &pb.Mutation{Operation: &pb.Mutation_Delete{Delete: key}}
}

// get returns an entity as text, or a text which says that it does not exist.
func (e *env) get(kind, name string) string {
	e.Helper()
	resp, err := e.raw.Lookup(e.Context(), &pb.LookupRequest{ProjectId: e.project, Keys: []*pb.Key{e.name(kind, name)}})
	if err != nil {
		return outcome(err)
	}
	if len(resp.Found) == 0 {
		return "missing"
	}
	return showAll(resp.Found[0].Entity.Properties)
}

// keys runs a keys-only query, and returns the names in the keys.
func (e *env) keys(q *datastore.Query) string {
	e.Helper()
	return e.results(q.KeysOnly())
}

// results runs a query, and returns the names in the results' keys. For a projection, it also
// returns the values.
func (e *env) results(q *datastore.Query) string {
	e.Helper()
	var all []string
	it := e.client.Run(e.Context(), q)
	for {
		var properties datastore.PropertyList
		key, err := it.Next(&properties)
		if errors.Is(err, iterator.Done) {
			return strings.Join(all, " ")
		}
		if err != nil {
			return outcome(err)
		}
		s := key.Name
		if s == "" {
			s = fmt.Sprint(key.ID)
		}
		slices.SortFunc(properties, func(a, b datastore.Property) int { return strings.Compare(a.Name, b.Name) })
		for _, p := range properties {
			s += fmt.Sprintf(",%s=%v", p.Name, p.Value)
		}
		all = append(all, s)
	}
}
