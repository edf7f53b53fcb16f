package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
)

// TestProject names the project by each flag and environment variable, and looks for a job in that
// project's database.
func TestProject(t *testing.T) {
	e := emulator.ForTest(t, &emulator.Options{DatastoreAddr: "127.0.0.1:0"})
	t.Setenv("DATASTORE_EMULATOR_HOST", e.DatastoreAddr())
	for _, c := range []struct{ datastore, cloud, args, want string }{
		{"", "cloud", "verify j", `no such job: j in the database "(default)" of the project "cloud", at ` +
			e.DatastoreAddr()},
		{"ds", "cloud", "verify j", `of the project "ds"`},
		{"ds", "cloud", "verify --project flag --entities j", `of the project "flag"`},
		{"", "cloud", "splits --kind K", `of the project "cloud"`},
	} {
		t.Setenv("DATASTORE_PROJECT_ID", c.datastore)
		t.Setenv("GOOGLE_CLOUD_PROJECT", c.cloud)
		if err := run(t.Context(), strings.Fields(c.args), nil, io.Discard, io.Discard); err == nil ||
			!strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestPatience repeats calls, as Google's client does, to a database that does not answer or
// answers late.
func TestPatience(t *testing.T) {
	conn, err := grpc.NewClient("passthrough:///db.example:443",
		grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	call := func(t *testing.T, p *patience, invoke grpc.UnaryInvoker) (err error) {
		for range 100 {
			if err = p.call(t.Context(), "m", nil, nil, conn, invoke); status.Code(err) != codes.Unavailable &&
				status.Code(err) != codes.DeadlineExceeded {
				return err
			}
		}
		return err
	}
	down := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
		time.Sleep(time.Second)
		return status.Error(codes.Unavailable, "connection refused")
	}
	silent := func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
		<-ctx.Done()
		return status.FromContextError(ctx.Err()).Err()
	}
	good := func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error { return nil }
	synctest.Test(t, func(t *testing.T) {
		for want, invoke := range map[string]grpc.UnaryInvoker{"connection refused": down, "deadline": silent} {
			begun := time.Now()
			err := call(t, new(patience), invoke)
			if err == nil || !strings.Contains(err.Error(), "the database at db.example:443 does not answer") ||
				!strings.Contains(err.Error(), want) {
				t.Error(err)
			}
			if took := time.Since(begun); took < longest || took > longest+2*time.Second {
				t.Errorf("%s: after %v", want, took)
			}
		}
		p := new(patience)
		if err := p.call(t.Context(), "m", nil, nil, conn, func(context.Context, string, any, any, *grpc.ClientConn,
			...grpc.CallOption) error {
			return errors.New("the interceptor is there")
		}); err == nil || p.answered {
			t.Errorf("an error of this process counts as an answer: %v", err)
		}
		if err := call(t, p, good); err != nil {
			t.Error(err)
		}
		begun := time.Now() // the database has answered before, so the error is returned at once
		if err := call(t, p, down); status.Code(err) != codes.Unavailable || time.Since(begun) < time.Minute {
			t.Error(err)
		}
	})
}
