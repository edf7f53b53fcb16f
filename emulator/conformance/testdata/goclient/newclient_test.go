package datastore

import (
	"context"
	"testing"

	"cloud.google.com/go/internal/testutil"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
)

// newClient replaces the function with this name in integration_test.go. The original connects to
// production, and this one to DATASTORE_EMULATOR_HOST.
func newClient(ctx context.Context, t *testing.T, _ []grpc.DialOption, opts ...option.ClientOption) *Client {
	enforcer := &testutil.HeadersEnforcer{
		OnFailure: t.Fatalf,
		Checkers:  []*testutil.HeaderChecker{testutil.XGoogClientHeaderChecker, xGoogReqParamsHeaderChecker},
	}
	opts = append(opts, enforcer.CallOptions()...)
	client, err := NewClientWithDatabase(ctx, testutil.ProjID(), testParams["databaseID"].(string), opts...)
	if err != nil {
		t.Fatalf("NewClientWithDatabase: %v", err)
	}
	return client
}
