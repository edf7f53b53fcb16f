// Package intercept lets code see and change the requests and answers of a Datastore client. An
// interceptor on the client's connection calls this code. It does so only for calls whose context
// comes from [With].
package intercept

import (
	"context"
	"errors"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc"
)

// A Call sees and changes the requests and answers of database calls. It sees the calls whose
// context was made by [With] for it.
type Call interface {
	Request(req any) error // Request may change a request, or refuse it by returning an error.
	Answer(resp any)       // Answer may read and change an answer.
	// Refused gets the error of a call, and returns the error that the client gets.
	Refused(err error) error
}

type callKey struct{}

// With returns a context that is derived from ctx. The Call c sees all database calls with this
// context. If ctx already has other Calls, these also see them, and get the answer first.
func With(ctx context.Context, c Call) context.Context {
	if outer := of(ctx); outer != nil {
		c = both{outer, c}
	}
	return context.WithValue(ctx, callKey{}, c)
}

func of(ctx context.Context) Call {
	c, _ := ctx.Value(callKey{}).(Call)
	return c
}

type both struct{ outer, inner Call }

func (b both) Request(req any) error { return errors.Join(b.outer.Request(req), b.inner.Request(req)) }

func (b both) Answer(resp any) {
	b.outer.Answer(resp)
	b.inner.Answer(resp)
}

func (b both) Refused(err error) error { return b.inner.Refused(b.outer.Refused(err)) }

// Unary is the interceptor, for the client's option grpc.WithUnaryInterceptor. If a connection has
// it twice, it still acts only once.
func Unary(
	ctx context.Context, method string, req, resp any, conn *grpc.ClientConn, invoke grpc.UnaryInvoker,
	opts ...grpc.CallOption,
) error {
	c := of(ctx)
	if c == nil {
		return invoke(ctx, method, req, resp, conn, opts...)
	}
	if err := c.Request(req); err != nil {
		return err
	}
	if err := invoke(context.WithValue(ctx, callKey{}, nil), method, req, resp, conn, opts...); err != nil {
		return c.Refused(err)
	}
	c.Answer(resp)
	return nil
}

// Has reports whether a client's connection has the interceptor. It makes a call that is never
// sent: either the interceptor refuses it, or its cancelled context ends it.
func Has(client *datastore.Client) bool {
	probe := new(probe)
	ctx, cancel := context.WithCancel(With(context.Background(), probe))
	cancel()
	_ = client.Get(ctx, datastore.NameKey("scattermap", "probe", nil), new(datastore.PropertyList))
	return probe.seen
}

// A probe is a [Call] that records that the interceptor has called it, and refuses the request.
type probe struct{ seen bool }

var errProbe = errors.New("the interceptor is there")

func (p *probe) Request(any) error       { p.seen = true; return errProbe }
func (p *probe) Answer(any)              {}
func (p *probe) Refused(err error) error { return err }
