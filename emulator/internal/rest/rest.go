// Package rest serves Datastore and Cloud Tasks over HTTP/1.1, for clients without gRPC.
//
// Paths of Cloud Tasks follow the documented REST API, /v2/projects/…. Firebase's Admin SDK sends paths without
// the version to CLOUD_TASKS_EMULATOR_HOST. In production a deployment of a task function has
// created its queue by then. So a queue that such a request names is created if it does not exist.
package rest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	pb "cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/fieldmaskpb"
)

// maxBody is the largest size of a request's body in bytes. It exceeds every request that the
// service accepts.
const maxBody = 4 << 20

// Tasks serves the methods of c, in JSON.
func Tasks(c pb.CloudTasksClient) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ready(w, r) {
			return
		}
		resp, err := serve(r.Context(), c, r, http.MaxBytesReader(w, r.Body, maxBody))
		if err != nil {
			writeError(w, err)
			return
		}
		w.Header().Set("Content-Type", "application/json; charset=UTF-8")
		body, err := protojson.Marshal(resp)
		if err != nil {
			body = []byte("{}")
		}
		_, _ = w.Write(body) // the client has gone
	})
}

// writeError writes an error in JSON.
func writeError(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(httpStatus(s.Code()))
	body := map[string]any{"error": map[string]any{"code": httpStatus(s.Code()), "message": s.Message(),
		"status": codeName(s.Code())}}
	_ = json.NewEncoder(w).Encode(body) // the client has gone
}

// ready answers a request by which a script asks whether the service is up, as Google's emulators
// do. It returns false for other requests.
func ready(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Path != "/" || r.Method != http.MethodGet && r.Method != http.MethodHead {
		return false
	}
	_, _ = io.WriteString(w, "Ok\n") // the client has gone
	return true
}

func serve(ctx context.Context, c pb.CloudTasksClient, r *http.Request, body io.Reader) (proto.Message, error) {
	path := strings.Trim(r.URL.Path, "/")
	name, versioned := strings.CutPrefix(path, "v2/")
	// The project's name may have a colon of its own, as in example.com:p.
	last := strings.LastIndexByte(name, '/') + 1
	id, verb, _ := strings.Cut(name[last:], ":")
	name = name[:last] + id
	parts := strings.Split(name, "/")
	to := r.Method + " " + verb
	for i, p := range parts {
		if i%2 == 0 {
			to += "/" + p
		} else if p == "" {
			return nil, unknown(r)
		}
	}
	if len(parts)%2 == 0 {
		to += "/*"
	}
	serves, known := calls[to]
	in := call{client: c, name: name, parent: strings.Join(parts[:max(0, len(parts)-1)], "/"),
		versioned: versioned, body: body, query: r.URL.Query()}
	if text := in.query.Get("pageSize"); text != "" {
		n, err := strconv.ParseInt(text, 10, 32)
		if err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "pageSize has to be a number, it is %.50q", text)
		}
		in.pageSize = int32(n)
	}
	if !known {
		return nil, unknown(r)
	}
	return serves(ctx, in)
}

// A call is the method call that an HTTP request stands for.
type call struct {
	client       pb.CloudTasksClient
	name, parent string // names of the queue or task, and of the resource that contains it
	versioned    bool   // whether the path has the version of the REST API; paths of Firebase's Admin SDK do not
	body         io.Reader
	query        url.Values
	pageSize     int32
}

// read decodes the body of a request into m.
func (c call) read(m proto.Message) error {
	text, err := io.ReadAll(c.body)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "the body can't be read: %v", err)
	}
	if len(text) == 0 {
		return nil
	}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: !c.versioned}).Unmarshal(text, m); err != nil {
		return status.Errorf(codes.InvalidArgument, "Invalid JSON payload received: %v", err)
	}
	return nil
}

const queues, tasks = "/projects/locations/queues", "/projects/locations/queues/tasks"

// calls has the function for each method, by the request's verb and path. A * stands for a name.
var calls = map[string]func(context.Context, call) (proto.Message, error){
	"POST " + queues:         createQueue,
	"PATCH " + queues + "/*": updateQueue,
	"POST " + tasks:          createTask,
	"GET " + queues: func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.ListQueues(ctx, &pb.ListQueuesRequest{
			Parent: c.parent, Filter: c.query.Get("filter"), PageSize: c.pageSize, PageToken: c.query.Get("pageToken"),
		})
	},
	"GET " + queues + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.GetQueue(ctx, &pb.GetQueueRequest{Name: c.name})
	},
	"DELETE " + queues + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.DeleteQueue(ctx, &pb.DeleteQueueRequest{Name: c.name})
	},
	"POST pause" + queues + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.PauseQueue(ctx, &pb.PauseQueueRequest{Name: c.name})
	},
	"POST resume" + queues + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.ResumeQueue(ctx, &pb.ResumeQueueRequest{Name: c.name})
	},
	"POST purge" + queues + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.PurgeQueue(ctx, &pb.PurgeQueueRequest{Name: c.name})
	},
	"GET " + tasks: func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.ListTasks(ctx, &pb.ListTasksRequest{
			Parent: c.parent, PageSize: c.pageSize, PageToken: c.query.Get("pageToken"),
			ResponseView: view(c.query.Get("responseView")),
		})
	},
	"GET " + tasks + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.GetTask(ctx,
			&pb.GetTaskRequest{Name: c.name, ResponseView: view(c.query.Get("responseView"))})
	},
	"DELETE " + tasks + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		return c.client.DeleteTask(ctx, &pb.DeleteTaskRequest{Name: c.name})
	},
	"POST run" + tasks + "/*": func(ctx context.Context, c call) (proto.Message, error) {
		req := new(pb.RunTaskRequest)
		if err := c.read(req); err != nil {
			return nil, err
		}
		req.Name = c.name
		return c.client.RunTask(ctx, req)
	},
}

func createQueue(ctx context.Context, c call) (proto.Message, error) {
	req := &pb.CreateQueueRequest{Parent: c.parent, Queue: new(pb.Queue)}
	if err := c.read(req.Queue); err != nil {
		return nil, err
	}
	return c.client.CreateQueue(ctx, req)
}

func updateQueue(ctx context.Context, c call) (proto.Message, error) {
	req := &pb.UpdateQueueRequest{Queue: new(pb.Queue)}
	if err := c.read(req.Queue); err != nil {
		return nil, err
	}
	req.Queue.Name = c.name
	if mask := c.query.Get("updateMask"); mask != "" {
		quoted, _ := json.Marshal(mask)
		req.UpdateMask = new(fieldmaskpb.FieldMask)
		if err := protojson.Unmarshal(quoted, req.UpdateMask); err != nil {
			return nil, status.Errorf(codes.InvalidArgument, "updateMask: %v", err)
		}
	}
	return c.client.UpdateQueue(ctx, req)
}

func createTask(ctx context.Context, c call) (proto.Message, error) {
	req := new(pb.CreateTaskRequest)
	if err := c.read(req); err != nil {
		return nil, err
	}
	req.Parent = c.parent
	if !c.versioned {
		if h := req.Task.GetHttpRequest(); h != nil && h.Url == "" {
			return nil, errNoURL
		}
		if err := ensure(ctx, c.client, c.parent); err != nil {
			return nil, err
		}
	}
	return c.client.CreateTask(ctx, req)
}

// errNoURL is the error for a task without a URL. Clients create such tasks if they rely on
// Firebase's own emulators, which know the URLs of functions.
var errNoURL = status.Error(codes.InvalidArgument, "the task has no URL. "+
	"Firebase's Admin SDK sends none to an emulator, "+
	"as Firebase's own knows where the function is. Here the option uri of enqueue says it: "+
	"enqueue(data, {uri: \"http://127.0.0.1:5001/PROJECT/LOCATION/FUNCTION\"}), in Python TaskOptions(uri=...)")

func unknown(r *http.Request) error {
	return status.Errorf(codes.NotFound,
		"there is no %s %.200s here: this is Cloud Tasks, as gRPC, and as JSON below /v2/projects/", r.Method,
		r.URL.Path)
}

// ensure creates a queue if it does not exist.
func ensure(ctx context.Context, c pb.CloudTasksClient, name string) error {
	_, err := c.GetQueue(ctx, &pb.GetQueueRequest{Name: name})
	if status.Code(err) != codes.NotFound {
		return err
	}
	location, _, _ := strings.Cut(name, "/queues/")
	_, err = c.CreateQueue(ctx, &pb.CreateQueueRequest{Parent: location, Queue: &pb.Queue{Name: name}})
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}

func view(text string) pb.Task_View { return pb.Task_View(pb.Task_View_value[text]) }

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

// codeName returns the name of a code in Google's JSON, such as NOT_FOUND.
func codeName(c codes.Code) string {
	var b strings.Builder
	for i, r := range c.String() {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToUpper(b.String())
}
