package page

import (
	"context"
	"errors"
	"time"

	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A next says how a page continues after a call.
type next int

const (
	goesOn    next = iota
	endsPage       // the page ends before the entity
	abandoned      // the call timed out: do not touch anything shared
)

// callsInPage is the maximum number of calls for one entity in a page while the service says
// "later".
const callsInPage = 3

var errWaits = errors.New("the service that the function calls has refused too many calls")

var hasToWait = fault.Refusal{Summary: "the function has to wait", Cause: errWaits, Later: true}

// call runs the function on an entity as soon as the job's rate and its brake allow it, and
// stores the outcome in r. It returns how long the page has waited.
//
// If a service refuses a call and says "later", the entity has not failed yet. The page waits and
// calls again. If the service also refuses most other calls, the page ends before the entity; if
// it is the page's first entity, the range is postponed. The entity has a failed attempt if it is
// refused while other calls are accepted, or if its range has waited for an hour.
func (p *Page) call(
	ctx context.Context, runner *function.Runner, o *Results, h *hand, r *result,
) (then next, waited time.Duration, err error) {
	brake := p.Paces.Brake(p.Job.Ref())
	for calls := 1; ; calls++ {
		if calls > 1 || !h.first {
			ok, wait, err := p.await(ctx, brake, h, waited)
			if waited += wait; err != nil {
				return goesOn, waited, err
			}
			if !ok {
				return ends(h, hasToWait, waited)
			}
		}
		begun := time.Now()
		if !p.runEntity(runner, o, h, r) {
			return abandoned, waited, nil
		}
		f := r.failure
		e := pace.End{Took: time.Since(begun), Failed: f != nil, Busy: f != nil && !f.Permanent}
		e.Later = e.Busy && fault.IsLater(f.Err)
		if brake.Done(time.Now(), h.pass, e); !e.Later {
			return goesOn, waited, nil
		}
		after := fault.After(f.Err)
		if calls < callsInPage && waited+after <= p.Pause {
			pause, err := pause(ctx, after)
			if waited += pause; err != nil {
				return goesOn, waited, err
			}
			again, _ := p.look(r.at, r.read)
			*r = again
			continue
		}
		if brake.Accepts() || p.Impatient && h.place == 0 {
			return goesOn, waited, nil
		}
		return ends(h, fault.Refusal{Summary: "the service that the function calls refuses most calls", Cause: f.Err,
			Later: true, After: after}, waited)
	}
}

// left returns the failure of an entity whose call was abandoned, or ended its goroutine. It tells
// the brake, which still waits for the end of the call.
func (p *Page) left(h *hand, left error, at *keyspace.Position, read wire.Stamp) result {
	limit := time.Duration(p.Job.Timeout)
	e := pace.End{Failed: true}
	if errors.Is(left, function.ErrTimeout) {
		e.Took, e.Busy = limit, true
		left = TooSlowError{limit}
	}
	h.view.close()
	p.Paces.Brake(p.Job.Ref()).Done(time.Now(), h.pass, e)
	return p.fails(at, read, left)
}

// ends ends the page before its next entity. If that is the first one, it returns the refusal,
// which postpones the range.
func ends(h *hand, refusal fault.Refusal, waited time.Duration) (next, time.Duration, error) {
	if h.place == 0 {
		return goesOn, waited, refusal
	}
	return endsPage, waited, nil
}

// await waits until a call may start. It returns false if the page would wait too long.
func (p *Page) await(
	ctx context.Context, brake *pace.Brake, h *hand, before time.Duration,
) (ok bool, waited time.Duration, err error) {
	waited, err = pause(ctx, time.Until(p.Begin.Add(time.Duration(h.place)*p.Spacing)))
	h.pass = pace.Pass{}
	for err == nil {
		wait, begins := brake.Ask(time.Now(), &h.pass)
		if begins {
			return true, waited, nil
		}
		if before+waited+wait > p.Pause || p.Ends() {
			if brake.Insist(&h.pass) {
				return true, waited, nil
			}
			break
		}
		wait, err = pause(ctx, wait)
		waited += wait
	}
	brake.Leave(h.pass)
	return false, waited, err
}
