package faults

import (
	"slices"
	"time"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/inject"
)

// Call draws the faults of a call, one rule after the other. When a rule prevents the call's
// effect, Call skips the remaining rules.
func (s source) Call(method string, req any) inject.Call {
	var c inject.Call
	about := func(r *activeRule) bool {
		if !r.Kind.ofCalls() || c.Lost != nil || c.Abort || len(r.Methods) > 0 && !slices.Contains(r.Methods, method) {
			return false
		}
		switch r.Kind {
		case AbortCommit:
			commit, ok := req.(*datastorepb.CommitRequest)
			return ok && commit.GetTransaction() != nil
		case LoseAnswer:
			return c.AnswerLost == nil
		}
		return true
	}
	s.each(about, func(r *activeRule, d time.Duration) {
		switch r.Kind {
		case LoseCall:
			c.Lost = status.Errorf(r.Code, "injected: %s was lost before its effect", method)
		case LoseAnswer:
			c.AnswerLost = status.Errorf(r.Code, "injected: the answer to %s was lost after its effect", method)
		case AbortCommit:
			c.Abort = true
		}
		c.Delay += d
	})
	return c
}
