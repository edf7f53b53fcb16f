// Package rest serves Datastore and Cloud Tasks over HTTP/1.1, for clients without gRPC.
//
// Each method has its path of the REST API: its HTTP rule is in the protocol's descriptors.
// Firebase's Admin SDK sends paths of Cloud Tasks without the version to CLOUD_TASKS_EMULATOR_HOST.
// In production a deployment of a task function has created its queue by then. So a queue that such
// a request names is created if it does not exist.
package rest

import (
	"context"
	"io"
	"net/http"
	"strings"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"cloud.google.com/go/longrunning/autogen/longrunningpb"
	"google.golang.org/genproto/googleapis/api/annotations"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// Datastore serves Datastore on the connection conn. It also answers two paths of Google's
// emulators: GET / and POST /reset, which calls reset.
func Datastore(conn grpc.ClientConnInterface, reset func()) http.Handler {
	all := routes(datastorepb.File_google_datastore_v1_datastore_proto, nil)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case ready(w, r):
		case r.URL.Path == "/reset" && r.Method == http.MethodPost:
			reset()
			_, _ = io.WriteString(w, "Resetting...\n") // the client has gone
		default:
			respond(w, r, func(f format) (proto.Message, error) {
				c, err := newCall(all, r, r.URL.Path, f)
				if err != nil {
					return nil, err
				}
				return c.invoke(r.Context(), conn)
			})
		}
	})
}

// Tasks returns a handler of the REST API of Cloud Tasks. It passes each call to the gRPC server at
// the other end of conn.
func Tasks(conn grpc.ClientConnInterface) http.Handler {
	all := routes(cloudtaskspb.File_google_cloud_tasks_v2_cloudtasks_proto, nil)
	all = append(all, routes(longrunningpb.File_google_longrunning_operations_proto, map[string]*annotations.HttpRule{
		"GetOperation": {Pattern: &annotations.HttpRule_Get{Get: "/v2/{name=projects/*/locations/*/operations/*}"}},
	})...)
	client := cloudtaskspb.NewCloudTasksClient(conn)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if ready(w, r) {
			return
		}
		path, firebase := r.URL.Path, strings.HasPrefix(r.URL.Path, "/projects/")
		if firebase {
			path = "/v2" + path
		}
		respond(w, r, func(f format) (proto.Message, error) {
			f.lenient = firebase
			c, err := newCall(all, r, path, f)
			if err != nil {
				return nil, err
			}
			if req, ok := c.request.(*cloudtaskspb.CreateTaskRequest); ok && firebase {
				if err := prepare(r.Context(), client, req); err != nil {
					return nil, err
				}
			}
			return c.invoke(r.Context(), conn)
		})
	})
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

// errNoURL is the error for a task without a URL. Clients create such tasks if they rely on
// Firebase's own emulators, which know the URLs of functions.
var errNoURL = status.Error(codes.InvalidArgument, "the task has no URL. "+
	"Firebase's Admin SDK sends none to an emulator, "+
	"as Firebase's own knows where the function is. Here the option uri of enqueue says it: "+
	"enqueue(data, {uri: \"http://127.0.0.1:5001/PROJECT/LOCATION/FUNCTION\"}), in Python TaskOptions(uri=...)")

// prepare creates the queue of a task from Firebase's Admin SDK if the queue does not exist.
func prepare(ctx context.Context, c cloudtaskspb.CloudTasksClient, req *cloudtaskspb.CreateTaskRequest) error {
	if h := req.Task.GetHttpRequest(); h != nil && h.Url == "" {
		return errNoURL
	}
	_, err := c.GetQueue(ctx, &cloudtaskspb.GetQueueRequest{Name: req.Parent})
	if status.Code(err) != codes.NotFound {
		return err
	}
	location, _, _ := strings.Cut(req.Parent, "/queues/")
	_, err = c.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: req.Parent}})
	if status.Code(err) == codes.AlreadyExists {
		return nil
	}
	return err
}
