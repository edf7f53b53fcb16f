package prebuilt_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/prebuilt"
)

// A lateCommit holds back one commit: the first that writes both a record of a range and an entity
// of the kinds. The caller gets an error. The test calls effect to let the commit take effect
// later.
type lateCommit struct {
	mu     sync.Mutex
	kinds  map[string]bool
	effect func() error
}

func (l *lateCommit) intercept(
	ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler,
) (any, error) {
	c, ok := req.(*datastorepb.CommitRequest)
	records, entities := false, false
	for _, m := range c.GetMutations() {
		for _, key := range []*datastorepb.Key{m.GetInsert().GetKey(), m.GetUpdate().GetKey(), m.GetUpsert().GetKey(),
			m.GetDelete()} {
			if key != nil {
				records = records || key.Path[0].Kind == "ScattermapRange"
				entities = entities || l.kinds[key.Path[0].Kind]
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok || !records || !entities || l.effect != nil {
		return handler(ctx, req)
	}
	l.effect = func() error {
		_, err := handler(context.WithoutCancel(ctx), req)
		return err
	}
	return nil, status.Error(codes.Internal, "the connection was lost")
}

// TestLatePages tests each prebuilt mapper. It holds back the commit of a page until the job has
// ended and others have changed the entities and copies. The late commit must change nothing.
func TestLatePages(t *testing.T) {
	for _, each := range [][2]string{{"copy", `{"kind": "Copy"}`}, {"rename", `{"from": "title", "to": "name"}`},
		{"set", `{"property": "n", "value": 7}`}, {"drop", `{"properties": ["title"]}`}, {"touch", "{}"},
		{"delete", "{}"}} {
		for _, others := range []bool{false, true} {
			t.Run(fmt.Sprint(each[0], ", changed by others: ", others), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { latePage(t, each[0], each[1], others) })
			})
		}
	}
}

func latePage(t *testing.T, name, params string, others bool) {
	late := &lateCommit{kinds: map[string]bool{"Doc": true, "Copy": true}}
	f := newFleet(t, 1, prebuilt.Mappers(), late.intercept)
	put := func(kind, title string) {
		t.Helper()
		for i := range 5 {
			list := datastore.PropertyList{{Name: "n", Value: int64(i)}, {Name: "title", Value: title}}
			if _, err := f.calm.Put(t.Context(), key("docs", kind, fmt.Sprint(i)), &list); err != nil {
				t.Fatal(err)
			}
		}
	}
	all := func() map[string]any { // the values of all entities, by key and property
		t.Helper()
		found := make(map[string]any)
		for _, kind := range []string{"Doc", "Copy"} {
			var lists []datastore.PropertyList
			keys, err := f.calm.GetAll(t.Context(), datastore.NewQuery(kind).Namespace("docs"), &lists)
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range keys {
				for _, p := range lists[i] {
					found[k.String()+" "+p.Name] = p.Value
				}
			}
		}
		return found
	}
	put("Doc", "before")
	job, err := f.all[2].StartByName(t.Context(), name, mapper.Query{Kind: "Doc", Namespace: "docs"}, []byte(params),
		&mapper.StartOptions{ID: "late", PageSize: 5})
	if err != nil {
		t.Fatal(err)
	}
	if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateSucceeded || s.Processed != 5 {
		t.Fatalf("%+v, %v", s, err)
	}
	if others {
		put("Doc", "after")
		put("Copy", "after")
	}
	time.Sleep(time.Hour)
	before := all()
	late.mu.Lock()
	effect := late.effect
	late.mu.Unlock()
	if effect == nil {
		t.Fatal("no commit was late")
	}
	if err := effect(); err == nil {
		t.Error("the commit of a page takes effect after its job's end")
	}
	if diff := cmp.Diff(before, all()); diff != "" {
		t.Errorf("a late commit has changed entities (-before +after)\n%s", diff)
	}
}
