package emulator_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	rpcstatus "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/scattermap/scattermap/emulator"
)

// post sends a request to the Datastore's REST API. It returns the code and the body of the answer,
// and checks that the answer has the type of the request.
func post(t *testing.T, e *emulator.Emulator, path, kind, body string, header ...string) (code int, answer string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+e.DatastoreAddr()+path,
		strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if got, _, _ := strings.Cut(resp.Header.Get("Content-Type"), ";"); got != kind && path != "/reset" {
		t.Errorf("%s: the answer is %s, want %s", path, got, kind)
	}
	all, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(all)
}

const (
	asJSON  = "application/json"
	asProto = "application/x-protobuf"
)

// TestDatastoreREST calls the Datastore without gRPC. The Java client does so in protobuf, and the
// PHP client and scripts in JSON.
func TestDatastoreREST(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	const put = `{"mode": "NON_TRANSACTIONAL", "mutations": [{"insert": {"key": {"path": [{"kind": "K", "name": "a"}]},
		"properties": {"n": {"integerValue": "9007199254740993"}, "none": {"nullValue": null}}}}]}`
	const get = `{"keys": [{"path": [{"kind": "K", "name": "a"}]}]}`
	for _, c := range []struct {
		path, body string
		code       int
		want       string
	}{
		{"/v1/projects/p:commit", put, 200, `"mutationResults"`},
		{"/v1/projects/p:lookup", get, 200, `"9007199254740993"`},
		{"/v1/projects/p:runQuery", `{"query": {"kind": [{"name": "K"}]}}`, 200, `"FULL"`},
		{"/v1/projects/p:runAggregationQuery", `{"gqlQuery": {"queryString": "SELECT COUNT(*) FROM K"}}`, 200,
			`"integerValue":"1"`},
		{"/v1/projects/example.com:q:beginTransaction", "", 200, `"transaction"`},
		{"/v1/projects/p:commit", put, 409, `"ALREADY_EXISTS"`},
		{"/v1/projects/p:runQuery", `{}`, 400, `"INVALID_ARGUMENT"`},
		{"/v1/projects/p:lookup", `{"key": []}`, 400, `"INVALID_ARGUMENT"`},
		{"/v1/projects/p:lookup", `{`, 400, `"INVALID_ARGUMENT"`},
		{"/v1/projects/p:nothing", `{}`, 404, `"NOT_FOUND"`},
		// Google's classic emulator has this path of the admin API.
		{"/v1/projects/p:export", `{}`, 404, "serves google.datastore.v1.Datastore"},
		{"/v1/projects/p", `{}`, 404, `"NOT_FOUND"`},
	} {
		if code, answer := post(t, e, c.path, asJSON, c.body); code != c.code ||
			!strings.Contains(strings.ReplaceAll(answer, `": "`, `":"`), c.want) {
			t.Errorf("%s %s: %d %s, want %d with %s", c.path, c.body, code, answer, c.code, c.want)
		}
	}

	lookup := &pb.LookupRequest{Keys: []*pb.Key{{Path: []*pb.Key_PathElement{
		{Kind: "K", IdType: &pb.Key_PathElement_Name{Name: "a"}}}}}}
	wire, err := proto.Marshal(lookup)
	if err != nil {
		t.Fatal(err)
	}
	packed := new(bytes.Buffer)
	packer := gzip.NewWriter(packed)
	if _, err := packer.Write(wire); err != nil || packer.Close() != nil {
		t.Fatal(err)
	}
	for name, body := range map[string]string{"identity": string(wire), "gzip": packed.String()} {
		code, answer := post(t, e, "/v1/projects/p:lookup", asProto, body, "Content-Encoding", name)
		found := new(pb.LookupResponse)
		if err := proto.Unmarshal([]byte(answer), found); code != 200 || err != nil || len(found.Found) != 1 {
			t.Errorf("protobuf, %s: %d %v %v", name, code, found, err)
		}
	}
	code, answer := post(t, e, "/v1/projects/p:runQuery", asProto, "")
	failure := new(rpcstatus.Status)
	if err := proto.Unmarshal([]byte(answer), failure); code != 400 || err != nil ||
		failure.Code != int32(codes.InvalidArgument) || failure.Message == "" {
		t.Errorf("an error in protobuf: %d %v %v", code, failure, err)
	}

	if code, _ := post(t, e, "/reset", asJSON, ""); code != 200 {
		t.Errorf("reset: %d", code)
	}
	if _, answer := post(t, e, "/v1/projects/p:lookup", asJSON, get); strings.Contains(answer, "found") {
		t.Errorf("after the reset: %s", answer)
	}
}

// TestRESTErrors checks the names of errors in JSON, which google.rpc.Code defines.
func TestRESTErrors(t *testing.T) {
	var failure codes.Code
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0",
		Interceptor: func(context.Context, any, *grpc.UnaryServerInfo, grpc.UnaryHandler) (any, error) {
			return nil, status.Error(failure, "a failure")
		}})
	for code, want := range map[codes.Code]string{
		codes.Canceled: "CANCELLED", codes.DeadlineExceeded: "DEADLINE_EXCEEDED", codes.DataLoss: "DATA_LOSS",
	} {
		failure = code
		if _, answer := post(t, e, "/v1/projects/p:lookup", asJSON, "{}"); !strings.Contains(answer, `"`+want+`"`) {
			t.Errorf("%v: %s, want %s", code, answer, want)
		}
	}
}

// TestCompressedCalls sends gRPC calls that are compressed by gzip, as clients can be told to.
func TestCompressedCalls(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	conn, err := grpc.NewClient("passthrough:///"+e.DatastoreAddr(),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.UseCompressor("gzip")))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := pb.NewDatastoreClient(conn).BeginTransaction(t.Context(),
		&pb.BeginTransactionRequest{ProjectId: "p"}); err != nil {
		t.Error(err)
	}
}
