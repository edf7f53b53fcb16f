package conformance

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/anypb"
)

// A recordedCall is a call of the Go client's integration tests in production, with production's
// answer.
type recordedCall struct {
	request proto.Message
	answer  proto.Message // nil if the answer was an error
	err     codes.Code
}

// recordingDiffers has the recorded calls to which the embedded Datastore answers differently, with
// the reasons. The test fails if a listed call's answer does not differ.
var recordingDiffers = map[int]string{
	22: "a filter that contradicts itself is answered without a look at the projection: its results, none, are " +
		"whole entities; here they are keys",
	106: "an eventually consistent read of 2019 misses what was just written; all reads are consistent since " +
		"Datastore is Firestore",
}

// TestGoClientRecording sends calls that Google has recorded in production to the embedded
// Datastore, and compares the answers. The recording is from the Go client's integration tests. It
// compares entities and their order, types of results, whether more results follow, and error
// codes.
//
// The cursors and transactions in requests are replaced by the embedded Datastore's own. Keys get
// the IDs that production chose. The comparison leaves out details of storage: versions, times,
// sizes and counts of index entries.
func TestGoClientRecording(t *testing.T) {
	dir := moduleDir(t, clientModule)
	contents, err := os.ReadFile(filepath.Join(dir, "datastore.replay"))
	if err != nil {
		t.Fatal(err)
	}
	calls, err := parseRecording(contents)
	if err != nil {
		t.Fatal(err)
	}
	if len(calls) < 200 { // version 1.27.1 has 201
		t.Fatalf("only %d calls are recorded", len(calls))
	}
	e := newEnv(t, "embedded")
	r := &replay{env: e, ours: make(map[string][]byte)}
	for i, c := range calls {
		diff := r.compare(c)
		switch why := recordingDiffers[i+1]; {
		case diff == "" && why != "":
			t.Errorf("call %d, %v, gets production's answer, but is listed as different: %s", i+1, c, why)
		case diff != "" && why == "":
			t.Errorf("call %d, %v: %s", i+1, c, diff)
		case diff != "":
			t.Logf("call %d differs: %s", i+1, why)
		}
	}
}

func (c *recordedCall) String() string {
	return fmt.Sprintf("%s %.600v", c.request.ProtoReflect().Descriptor().Name(), c.request)
}

// A replay sends recorded calls to the embedded Datastore.
type replay struct {
	env  *env
	ours map[string][]byte // our transactions and cursors, by the ones in production's answers
}

// compare sends a recorded call, and returns how the answer differs from the recorded one.
func (r *replay) compare(c *recordedCall) string {
	got, code := r.send(c)
	if code != c.err {
		return fmt.Sprintf("%v, production said %v", code, c.err)
	}
	if c.answer == nil {
		return ""
	}
	want, got := withoutChance(c.answer), withoutChance(got)
	if proto.Equal(want, got) {
		return ""
	}
	return "differs (-production +embedded):\n" + cmp.Diff(want, got, protocmp.Transform())
}

// send sends a recorded call, and returns the answer.
func (r *replay) send(c *recordedCall) (answer proto.Message, code codes.Code) {
	request := proto.CloneOf(c.request)
	r.translate(request.ProtoReflect())
	ctx := r.env.Context()
	var err error
	switch request := request.(type) {
	case *pb.AllocateIdsRequest:
		answer, err = r.env.raw.AllocateIds(ctx, request)
	case *pb.BeginTransactionRequest:
		answer, err = r.env.raw.BeginTransaction(ctx, request)
	case *pb.CommitRequest:
		if committed, ok := c.answer.(*pb.CommitResponse); ok {
			complete(request, committed)
		}
		answer, err = r.env.raw.Commit(ctx, request)
	case *pb.LookupRequest:
		answer, err = r.env.raw.Lookup(ctx, request)
	case *pb.RollbackRequest:
		answer, err = r.env.raw.Rollback(ctx, request)
	case *pb.RunQueryRequest:
		answer, err = r.env.raw.RunQuery(ctx, request)
	default:
		r.env.Fatalf("a %T is recorded, which this test does not know", request)
	}
	if err == nil && c.answer != nil {
		r.learn(c.answer, answer)
	}
	return answer, status.Code(err)
}

// complete gives incomplete keys the IDs that production chose for them.
func complete(request *pb.CommitRequest, answer *pb.CommitResponse) {
	for i, result := range answer.MutationResults {
		if result.Key == nil {
			continue
		}
		switch op := request.Mutations[i].Operation.(type) {
		case *pb.Mutation_Insert:
			op.Insert.Key = result.Key
		case *pb.Mutation_Upsert:
			op.Upsert.Key = result.Key
		}
	}
}

// learn records which of our transactions and cursors stand for those in production's answer.
func (r *replay) learn(theirs, ours proto.Message) {
	switch theirs := theirs.(type) {
	case *pb.BeginTransactionResponse:
		r.ours[string(theirs.Transaction)] = ours.(*pb.BeginTransactionResponse).Transaction
	case *pb.RunQueryResponse:
		batch := ours.(*pb.RunQueryResponse).Batch
		r.ours[string(theirs.Batch.EndCursor)] = batch.EndCursor
		for i, result := range theirs.Batch.EntityResults {
			if i < len(batch.EntityResults) {
				r.ours[string(result.Cursor)] = batch.EntityResults[i].Cursor
			}
		}
	}
}

// translate replaces production's transactions and cursors in a request by ours.
func (r *replay) translate(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch name := f.Name(); {
		case name == "transaction" || name == "start_cursor" || name == "end_cursor":
			if ours, ok := r.ours[string(v.Bytes())]; ok {
				m.Set(f, protoreflect.ValueOfBytes(ours))
			}
		case f.Message() != nil && !f.IsList() && !f.IsMap():
			r.translate(v.Message())
		}
		return true
	})
}

// withoutChance returns an answer without the parts that differ from run to run.
func withoutChance(answer proto.Message) proto.Message {
	answer = proto.CloneOf(answer)
	answer.ProtoReflect().SetUnknown(nil) // the recording has fields that the protocol no longer has
	switch answer := answer.(type) {
	case *pb.AllocateIdsResponse:
		for _, k := range answer.Keys {
			k.Path[len(k.Path)-1].IdType = nil
		}
	case *pb.BeginTransactionResponse:
		answer.Transaction = nil
	case *pb.CommitResponse:
		answer.CommitTime, answer.IndexUpdates = nil, 0
		for i := range answer.MutationResults {
			answer.MutationResults[i] = new(pb.MutationResult)
		}
	case *pb.LookupResponse:
		answer.ReadTime = nil
		byKey := func(a, b *pb.EntityResult) int {
			return strings.Compare(fullKey(a.Entity.Key), fullKey(b.Entity.Key))
		}
		for _, results := range [][]*pb.EntityResult{answer.Found, answer.Missing} {
			slices.SortFunc(results, byKey)
			stripped(results)
		}
	case *pb.RunQueryResponse:
		b := answer.Batch
		b.ReadTime, b.SnapshotVersion, b.SkippedCursor, b.EndCursor = nil, 0, nil, nil
		stripped(b.EntityResults)
	}
	return answer
}

func stripped(results []*pb.EntityResult) {
	for i, r := range results {
		results[i] = &pb.EntityResult{Entity: r.Entity}
	}
}

// parseRecording reads a file that package cloud.google.com/go/rpcreplay has written: a mark, and
// then records. Before each record is its length. The first record is the initial state. The others
// are messages of the type rpcreplay.Entry.
func parseRecording(contents []byte) ([]*recordedCall, error) {
	contents, ok := bytes.CutPrefix(contents, []byte("RPCReplay"))
	if !ok {
		return nil, errors.New("no recording")
	}
	const request, response = 1, 2
	var calls []*recordedCall
	byIndex := make(map[int]*recordedCall)
	for index := 0; len(contents) > 0; index++ {
		if len(contents) < 4 {
			return nil, io.ErrUnexpectedEOF
		}
		n := binary.LittleEndian.Uint32(contents)
		if uint64(len(contents)) < 4+uint64(n) {
			return nil, io.ErrUnexpectedEOF
		}
		record := contents[4 : 4+n]
		contents = contents[4+n:]
		if index == 0 {
			if !json.Valid(record) {
				return nil, fmt.Errorf("the initial state is %q", record)
			}
			continue
		}
		entry, err := parseEntry(record)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", index, err)
		}
		switch {
		case entry.kind == request:
			c := &recordedCall{request: entry.message}
			calls, byIndex[index] = append(calls, c), c
		case entry.kind == response && byIndex[entry.of] != nil:
			c := byIndex[entry.of]
			if s, ok := entry.message.(*spb.Status); ok {
				c.err = codes.Code(s.Code)
			} else {
				c.answer = entry.message
			}
		default:
			return nil, fmt.Errorf("entry %d is of kind %d, of %d", index, entry.kind, entry.of)
		}
	}
	return calls, nil
}

type recordedEntry struct {
	kind    uint64
	message proto.Message
	of      int // for an answer, the index of its request
}

// parseEntry decodes the fields kind, message and ref_index.
func parseEntry(wire []byte) (recordedEntry, error) {
	var e recordedEntry
	for len(wire) > 0 {
		field, kind, n := protowire.ConsumeTag(wire)
		if n < 0 {
			return e, protowire.ParseError(n)
		}
		wire = wire[n:]
		switch field {
		case 1, 5:
			v, n := protowire.ConsumeVarint(wire)
			if n < 0 {
				return e, protowire.ParseError(n)
			}
			if field == 1 {
				e.kind = v
			} else {
				e.of = int(v)
			}
			wire = wire[n:]
		case 3:
			encoded, n := protowire.ConsumeBytes(wire)
			if n < 0 {
				return e, protowire.ParseError(n)
			}
			packed := new(anypb.Any)
			err := proto.Unmarshal(encoded, packed)
			if err == nil {
				e.message, err = packed.UnmarshalNew()
			}
			if err != nil {
				return e, err
			}
			wire = wire[n:]
		default:
			n := protowire.ConsumeFieldValue(field, kind, wire)
			if n < 0 {
				return e, protowire.ParseError(n)
			}
			wire = wire[n:]
		}
	}
	return e, nil
}
