package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
)

// calls counts the calls of a client to Datastore, by their purpose.
type calls struct {
	pages int64 // number of pages in the jobs that made the calls

	mu    sync.Mutex
	kinds map[string]callsOf
	// cutting is the number of calls that decide where ranges are cut. These are the queries and
	// counts of accounts, except those that read pages.
	cutting int
}

type callsOf struct {
	n    int
	took time.Duration // the sum over all calls
}

func (c *calls) intercept(
	ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	begun := time.Now()
	err := invoker(ctx, method, req, reply, cc, opts...)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.kinds == nil {
		c.kinds = make(map[string]callsOf)
	}
	what := describe(path.Base(method), req)
	if err != nil {
		what += ": " + status.Code(err).String()
	}
	first := what == "RunQuery "+accounts+", first" // the query by which a start checks whether there is any entity
	if !first && strings.HasPrefix(what, "RunQuery "+accounts+",") ||
		strings.HasPrefix(what, "RunAggregationQuery "+accounts) {
		c.cutting++
	}
	k := c.kinds[what]
	c.kinds[what] = callsOf{k.n + 1, k.took + time.Since(begun)}
	return err
}

// describe returns the purpose of a call.
func describe(method string, req any) string {
	switch r := req.(type) {
	case *datastorepb.RunQueryRequest:
		q := r.GetQuery()
		for _, k := range q.GetKind() {
			method += " " + k.Name
		}
		switch {
		case q.GetOffset() > 0:
			method += ", offset"
		case sampled(q):
			method += ", sample"
		case q.GetLimit().GetValue() == 1:
			method += ", first"
		}
	case *datastorepb.RunAggregationQueryRequest:
		for _, k := range r.GetAggregationQuery().GetNestedQuery().GetKind() {
			method += " " + k.Name
		}
	case *datastorepb.LookupRequest:
		kinds := make(map[string]bool)
		for _, k := range r.GetKeys() {
			kinds[k.GetPath()[len(k.GetPath())-1].GetKind()] = true
		}
		method += " " + strings.Join(slices.Sorted(maps.Keys(kinds)), " ")
		if len(r.GetReadOptions().GetTransaction()) > 0 {
			method += " in a transaction"
		}
	}
	return method
}

// sampled reports whether a query reads a sample of keys.
func sampled(q *datastorepb.Query) bool {
	return slices.ContainsFunc(q.GetOrder(), func(o *datastorepb.PropertyOrder) bool {
		return o.GetProperty().GetName() == "__scatter__"
	})
}

func (c *calls) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kinds, c.pages, c.cutting = nil, 0, 0
}

func (c *calls) total() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.kinds {
		n += k.n
	}
	return n
}

// String returns a line for each kind of call. The kinds that took longest in total come first.
func (c *calls) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := slices.SortedFunc(maps.Keys(c.kinds), func(a, b string) int {
		return cmp.Compare(c.kinds[b].took, c.kinds[a].took)
	})
	var b strings.Builder
	for _, name := range names {
		k := c.kinds[name]
		fmt.Fprintf(&b, "%6d  %8.1f ms each  %8.1f s  %s\n", k.n, k.took.Seconds()*1000/float64(k.n), k.took.Seconds(),
			name)
	}
	return b.String()
}
