package rest

import (
	"compress/gzip"
	"encoding/json"
	"io"
	"mime"
	"net/http"
	"strings"

	rpccode "google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

// maxBody is the largest size of a request's body in bytes. A request in JSON takes several times
// as many bytes as in protobuf.
const maxBody = 64 << 20

const protobufType = "application/x-protobuf"

// A format says how the bodies of a request and its answer are encoded: as JSON, or as protobuf,
// which the Java client sends.
type format struct {
	request, answer bool // whether it is protobuf
	lenient         bool // whether unknown fields are ignored
	numbers         bool // whether a JSON answer has numbers for enums, and not names
}

// formatOf returns the format of a request. An answer has the format of the request, unless the
// parameter alt says otherwise.
func formatOf(r *http.Request) format {
	var f format
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err == nil && kind == protobufType {
		f.request, f.answer = true, true
	}
	for _, name := range []string{"alt", "$alt"} {
		alt, encoding, _ := strings.Cut(r.URL.Query().Get(name), ";")
		f.numbers = f.numbers || encoding == "enum-encoding=int"
		switch alt {
		case "json":
			f.answer = false
		case "proto":
			f.answer = true
		}
	}
	return f
}

// read decodes the body of a request into m.
func (f format) read(r *http.Request, m proto.Message) error {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unpacked, err := gzip.NewReader(r.Body)
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "the body is not gzip: %v", err)
		}
		body = unpacked
	}
	data, err := io.ReadAll(io.LimitReader(body, maxBody+1))
	switch {
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "the body can't be read: %v", err)
	case len(data) > maxBody:
		return status.Errorf(codes.InvalidArgument, "Request payload size exceeds the limit: %d bytes.", maxBody)
	case f.request:
		err = proto.Unmarshal(data, m)
	case len(data) > 0:
		err = protojson.UnmarshalOptions{DiscardUnknown: f.lenient}.Unmarshal(data, m)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid payload received: %v", err)
	}
	return nil
}

// respond answers a request with what serve returns.
func respond(w http.ResponseWriter, r *http.Request, serve func(format) (proto.Message, error)) {
	f := formatOf(r)
	answer, err := serve(f)
	if err != nil {
		f.fail(w, status.Convert(err))
		return
	}
	f.write(w, http.StatusOK, answer)
}

func (f format) write(w http.ResponseWriter, code int, m proto.Message) {
	encode := protojson.MarshalOptions{UseEnumNumbers: f.numbers}.Marshal
	if f.answer {
		encode = proto.MarshalOptions{Deterministic: true}.Marshal // as over gRPC
	}
	body, err := encode(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	f.send(w, code, body)
}

func (f format) send(w http.ResponseWriter, code int, body []byte) {
	kind := "application/json; charset=UTF-8"
	if f.answer {
		kind = protobufType
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has gone
}

// fail writes an error: in JSON as Google's REST APIs do, and in protobuf as a google.rpc.Status.
func (f format) fail(w http.ResponseWriter, s *status.Status) {
	code := httpStatus(s.Code())
	if f.answer {
		f.write(w, code, s.Proto())
		return
	}
	body, err := json.Marshal(map[string]any{"error": map[string]any{
		"code": code, "message": s.Message(), "status": rpccode.Code(s.Code()).String(),
	}})
	if err != nil {
		body = []byte("{}")
	}
	f.send(w, code, body)
}

// httpStatuses has the HTTP status of each code, from the table in google/rpc/code.proto.
var httpStatuses = map[codes.Code]int{
	codes.InvalidArgument: 400, codes.FailedPrecondition: 400, codes.OutOfRange: 400, codes.Unauthenticated: 401,
	codes.PermissionDenied: 403, codes.NotFound: 404, codes.AlreadyExists: 409, codes.Aborted: 409,
	codes.ResourceExhausted: 429, codes.Canceled: 499, codes.Unimplemented: 501, codes.Unavailable: 503,
	codes.DeadlineExceeded: 504,
}

func httpStatus(c codes.Code) int {
	if s, ok := httpStatuses[c]; ok {
		return s
	}
	return http.StatusInternalServerError
}
