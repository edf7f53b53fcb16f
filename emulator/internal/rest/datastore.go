package rest

import (
	"compress/gzip"
	"context"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strings"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
)

// maxDatastoreBody is the largest size of a request's body in bytes. It exceeds every request that
// Datastore accepts, and its JSON.
const maxDatastoreBody = 32 << 20

const protobufType = "application/x-protobuf"

// Datastore serves Datastore's REST API, POST /v1/projects/PROJECT:METHOD, on the connection conn
// to the service. Bodies are JSON, or protobuf as the Java client sends them. It also answers two
// paths of Google's emulators: GET / and POST /reset, which calls reset.
func Datastore(conn grpc.ClientConnInterface, reset func()) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ready(w, r) {
			return
		}
		if r.URL.Path == "/reset" && r.Method == http.MethodPost {
			reset()
			_, _ = io.WriteString(w, "Resetting...\n") // the client has gone
			return
		}
		f := formatOf(r)
		resp, err := callDatastore(r.Context(), conn, r, f)
		if err != nil {
			f.fail(w, err)
			return
		}
		f.write(w, http.StatusOK, resp)
	})
}

// datastorePath matches the path of a method. The name of a project may contain colons.
var datastorePath = regexp.MustCompile(`^/v1/projects/([^/]+):([a-z][A-Za-z]*)$`)

func callDatastore(ctx context.Context, conn grpc.ClientConnInterface, r *http.Request, f format,
) (proto.Message, error) {
	service := pb.File_google_datastore_v1_datastore_proto.Services().ByName("Datastore")
	var method protoreflect.MethodDescriptor
	parts := datastorePath.FindStringSubmatch(r.URL.Path)
	if parts != nil && r.Method == http.MethodPost {
		verb := strings.ToUpper(parts[2][:1]) + parts[2][1:]
		method = service.Methods().ByName(protoreflect.Name(verb))
	}
	if method == nil {
		return nil, status.Errorf(codes.NotFound,
			"there is no %s %.200s here: this is Datastore, as gRPC, and as POST /v1/projects/PROJECT:METHOD",
			r.Method, r.URL.Path)
	}
	req, err := newMessage(method.Input())
	if err != nil {
		return nil, err
	}
	resp, err := newMessage(method.Output())
	if err != nil {
		return nil, err
	}
	if err := f.read(r, req); err != nil {
		return nil, err
	}
	project := method.Input().Fields().ByName("project_id")
	req.ProtoReflect().Set(project, protoreflect.ValueOfString(parts[1]))
	return resp, conn.Invoke(ctx, "/"+string(service.FullName())+"/"+string(method.Name()), req, resp)
}

func newMessage(d protoreflect.MessageDescriptor) (proto.Message, error) {
	t, err := protoregistry.GlobalTypes.FindMessageByName(d.FullName())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	return t.New().Interface(), nil
}

// A format says how the bodies of a request and its answer are encoded.
type format struct{ request, answer string } // "json" or "proto"

// formatOf returns the format of a request. An answer has the format of the request, unless the
// parameter alt says otherwise.
func formatOf(r *http.Request) format {
	f := format{"json", "json"}
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind == protobufType {
		f = format{"proto", "proto"}
	}
	for _, name := range []string{"alt", "$alt"} {
		if alt := r.URL.Query().Get(name); alt == "json" || alt == "proto" {
			f.answer = alt
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
	data, err := io.ReadAll(io.LimitReader(body, maxDatastoreBody+1))
	switch {
	case err != nil:
		return status.Errorf(codes.InvalidArgument, "the body can't be read: %v", err)
	case len(data) > maxDatastoreBody:
		return status.Errorf(codes.InvalidArgument, "Request payload size exceeds the limit: %d bytes.",
			maxDatastoreBody)
	case f.request == "proto":
		err = proto.Unmarshal(data, m)
	case len(data) > 0:
		err = protojson.Unmarshal(data, m)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid payload received: %v", err)
	}
	return nil
}

// write writes an answer.
func (f format) write(w http.ResponseWriter, code int, m proto.Message) {
	kind, encode := "application/json; charset=UTF-8", protojson.Marshal
	if f.answer == "proto" {
		kind, encode = protobufType, proto.Marshal
	}
	body, err := encode(m)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", kind)
	w.WriteHeader(code)
	_, _ = w.Write(body) // the client has gone
}

// fail writes an error: in JSON as Google's REST APIs do, and in protobuf as a google.rpc.Status.
func (f format) fail(w http.ResponseWriter, err error) {
	if f.answer == "proto" {
		s := status.Convert(err)
		f.write(w, httpStatus(s.Code()), s.Proto())
		return
	}
	writeError(w, err)
}
