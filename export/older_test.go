package export

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/internal/testbucket"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

var errLost = errors.New("the connection was lost")

// ofOlderBuild are the parameters of a stage of an export that an older build has started, with its
// files directly in the export's folder.
var ofOlderBuild = stage{Export: "e", Run: runA, Folder: "f"}

// olderBucket returns a bucket with some blobs, and an export that uses it. Each call that starts
// with refused, such as "read f/1.jsonl", fails with errLost; empty: none.
func olderBucket(t *testing.T, refused string, blobs ...string) (*testbucket.Bucket, *Export[mapper.NoParams]) {
	b := testbucket.New()
	for _, name := range blobs {
		b.Put(name, []byte(`{"export":"e","run":"`+runA+`"}`))
	}
	b.Hook = func(c *testbucket.Call) error {
		if refused != "" && strings.HasPrefix(c.Op+" "+c.Key, refused) {
			return errLost
		}
		return c.Effect()
	}
	x := define(t, Options{})
	x.bucket = b.Open()
	return b, x
}

// TestOlderEnds runs the last steps of an older build's export. Every error must be returned.
func TestOlderEnds(t *testing.T) {
	s := ofOlderBuild
	_, x := olderBucket(t, "")
	if m, err := x.decide(t.Context(), s); err == nil || !strings.Contains(err.Error(), "has somebody deleted it?") {
		t.Errorf("an end without a manifest: %+v, %v", m, err)
	}
	other := stage{Export: "e", Run: runA, Folder: "f", Layout: layoutRuns, Coding: "cobol"}
	if m, err := x.decide(t.Context(), other); err == nil || !strings.Contains(err.Error(), `"cobol"`) {
		t.Errorf("an end of another build's export: %+v, %v", m, err)
	}
	b, x := olderBucket(t, "", "f/_STARTED", "f/_parts/aa/aa", "f/1.jsonl", "f/_parts")
	if err := x.tidyDirectly(t.Context(), s); err != nil || fmt.Sprint(b.Names()) != "[f/1.jsonl f/_parts]" {
		t.Errorf("left are %q, %v", b.Names(), err)
	}
	for _, call := range []string{"list f/_parts/", "delete f/_parts/aa/aa", "read f/_STARTED", "delete f/_STARTED"} {
		_, x := olderBucket(t, call, "f/_STARTED", "f/_parts/aa/aa")
		if err := x.tidyDirectly(t.Context(), s); !errors.Is(err, errLost) {
			t.Errorf("%s: %v", call, err)
		}
	}
	done := &mapper.Completion{Status: &mapper.Status{}}
	for _, call := range []string{"read f/run-", "list f/_parts/", "write f/_SUCCESS"} {
		_, x := olderBucket(t, call, "f/manifest.json")
		if err := x.succeed(t.Context(), done, s); !errors.Is(err, errLost) {
			t.Errorf("%s fails, and the end returns %v", call, err)
		}
	}
}

// TestOlderDiscard deletes the blobs of an older build's export. If a call fails, its claim stays,
// so that the deletion can be repeated.
func TestOlderDiscard(t *testing.T) {
	for refused, want := range map[string]string{
		"":                  "[f/run-" + runB + "/1 g]",
		"delete f/1.jsonl":  "[f/1.jsonl f/_STARTED f/run-" + runB + "/1 g]",
		"delete f/_STARTED": "[f/_STARTED f/run-" + runB + "/1 g]",
		"read f/_STARTED":   "[f/1.jsonl f/_STARTED f/run-" + runB + "/1 g]",
		"list f/":           "[f/1.jsonl f/_STARTED f/run-" + runB + "/1 g]",
	} {
		b, x := olderBucket(t, refused, "f/_STARTED", "f/1.jsonl", "f/run-"+runB+"/1", "g")
		r := &Run{ID: "e", Folder: "f", bucket: x.bucket, place: ofOlderBuild.place()}
		err := r.deleteBlobs(t.Context())
		if (err != nil) != (refused != "") || fmt.Sprint(b.Names()) != want {
			t.Errorf("%q fails: %v, and left are %q, want %s", refused, err, b.Names(), want)
		}
	}
}

// TestOlderPublish writes the manifest of an older build's export, unless it was discarded.
func TestOlderPublish(t *testing.T) {
	s, m := ofOlderBuild, &Manifest{Export: "e", Run: runA}
	if b, x := olderBucket(t, ""); x.publish(t.Context(), s, m) != nil || len(b.Names()) != 2 {
		t.Errorf("the manifest is in %q, want it in two places", b.Names())
	}
	for _, call := range []string{"read f/run-", "write f/run-"} {
		b, x := olderBucket(t, call)
		if err := x.publish(t.Context(), s, m); !errors.Is(err, errLost) || len(b.Names()) != 0 {
			t.Errorf("%s fails: %v, and a manifest is in %q", call, err, b.Names())
		}
	}
	b, x := olderBucket(t, "")
	b.Put(s.place().outcome(), manifestText(t, s.place().discarded("e")))
	if err := x.publish(t.Context(), s, m); err == nil || !strings.Contains(err.Error(), "was discarded") ||
		len(b.Names()) != 1 {
		t.Errorf("the run was discarded, and its manifest is in %q, %v", b.Names(), err)
	}
}

// TestOlderFolders starts exports in folders that older builds have claimed. A start must be
// refused only if the older build's export may still delete blobs there.
func TestOlderFolders(t *testing.T) {
	b := testbucket.New()
	x := define(t, Options{})
	x.bucket = b.Open()
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		if _, err := w.Client.Put(t.Context(), datastore.IDKey("Number", 1, nil), &numbered{1}); err != nil {
			t.Fatal(err)
		}
		start := func(in string) (*Run, error) {
			return x.Start(t.Context(), w.Engine, mapper.Query{Kind: "Number"}, mapper.NoParams{},
				&StartOptions{Folder: in})
		}
		first, err := start("first")
		if err == nil {
			_, err = first.Wait(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		_, err = x.parts.Start(t.Context(), w.Engine, mapper.Query{Kind: "None"}, startParams[mapper.NoParams]{
			Export: "old", Run: runA, Folder: "of of an older build that goes on", Hold: true,
		}, &mapper.StartOptions{ID: "old", AllowEmpty: true})
		if err != nil {
			t.Fatal(err)
		}
		claim := func(of, run string) []byte { return fmt.Appendf(nil, `{"export":%q,"run":%q}`, of, run) }
		for name, c := range map[string]struct {
			claim []byte
			part  bool
			want  string
		}{
			"of an export elsewhere":            {claim("none", "x"), false, ""},
			"of an export elsewhere with parts": {claim("none", "x"), true, "are parts of export \"none\""},
			"of an export of this build":        {claim(first.ID, first.place.run), false, ""},
			"of an ID that is used again":       {claim(first.ID, "x"), false, ""},
			"of such an ID with parts":          {claim(first.ID, "x"), true, "are parts of export"},
			"of an older build that goes on":    {claim("old", runA), false, "an older build has begun"},
			"of nobody":                         {nil, true, ""},
			"damaged":                           {[]byte("no JSON"), false, "read whose the folder"},
		} {
			folder := "of " + name
			b.Put(folder+"/_STARTED", c.claim)
			if c.part {
				b.Put(folder+"/_parts/aa/aa", []byte("x"))
			}
			for _, in := range []string{folder, folder + "/below"} {
				_, err := start(in)
				if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
					t.Errorf("%s: %v, want %q", in, err, c.want)
				}
			}
			if _, err := start(folder + " beside"); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	})
}

// TestManyParts reads and deletes more records of parts than one answer of the database has. If a
// later call fails, that must be an error: no part may be missed silently.
func TestManyParts(t *testing.T) {
	x := define(t, Options{})
	mappertest.Run(t, x.Mappers(), nil, func(t *testing.T, w *mappertest.Env) {
		const n = 700
		keys := make([]*datastore.Key, n)
		for i := range keys {
			keys[i] = datastore.NameKey(partKind, entityName(runA, fmt.Sprintf("%04x", i)), nil)
		}
		for _, some := range [][]*datastore.Key{keys[:400], keys[400:]} {
			if _, err := w.Client.PutMulti(t.Context(), some, make([]part, len(some))); err != nil {
				t.Fatal(err)
			}
		}
		queries, refused := 0, 2
		client, err := w.NewClient(option.WithGRPCDialOption(grpc.WithUnaryInterceptor(func(ctx context.Context,
			method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption,
		) error {
			if _, query := req.(*pb.RunQueryRequest); query {
				if queries++; queries == refused {
					return status.Error(codes.PermissionDenied, "the caller lacks a role")
				}
			}
			return invoke(ctx, method, req, resp, conn, opts...)
		})))
		if err != nil {
			t.Fatal(err)
		}
		defer client.Close()
		seen := 0
		count := func(string, part) error { seen++; return nil }
		if err := eachPart(t.Context(), client, runA, stretch{}, count); err == nil || seen == 0 || seen == n {
			t.Errorf("%d parts are read, %v, want some and an error", seen, err)
		}
		refused, seen = 0, 0
		if err := eachPart(t.Context(), client, runA, stretch{}, count); err != nil || seen != n {
			t.Errorf("%d parts are read, %v, want %d", seen, err, n)
		}
		seen = 0
		stop := errors.New("stop")
		if err := eachPart(t.Context(), client, runA, stretch{}, func(string, part) error {
			seen++
			return stop
		}); !errors.Is(err, stop) || seen != 1 {
			t.Errorf("%v after %d parts, want the function's error after one", err, seen)
		}
		queries, refused = 0, 2
		if err := deleteEntities(t.Context(), client, partKind, runA); err == nil {
			t.Error("a later query of a deletion is refused, and it says nothing")
		}
		refused = 0
		if err := deleteEntities(t.Context(), client, partKind, runA); err != nil {
			t.Error(err)
		}
		if left, err := w.Client.Count(t.Context(), datastore.NewQuery(partKind)); err != nil || left > 0 {
			t.Errorf("%d are left, %v", left, err)
		}
	})
}
