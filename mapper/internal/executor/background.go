package executor

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/planner"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// background limits how many pages of background jobs run at the same time in this process. A page
// needs a slot. Pages get slots in the order in which they ask. The zero value is ready for use.
type background struct {
	mu   sync.Mutex
	pace pace.Background
	// number of slots in use: by running pages, and by ended pages whose slots still rest
	// (longestRest)
	taken   int
	waiting []chan struct{} // the waiting pages, in order; the channel of a page is closed when it gets its slot
	// the largest number of pages since the last probe that had a slot or waited for one, at the
	// same time
	wanted int

	deliveries int // number of background jobs' deliveries under way
	stop       context.CancelFunc
	near       *datastore.Key // the key of the first entity of the latest page
}

// enter records that a delivery of a background job starts. The first one starts the probes, which
// measure how fast the database answers. The delivery must call leave when it ends.
func (b *background) enter(client *datastore.Client) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deliveries++; b.deliveries > 1 {
		return
	}
	b.pace.Start(time.Now())
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	go b.probe(ctx, client)
}

func (b *background) leave() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.deliveries--; b.deliveries == 0 {
		b.stop()
	}
}

// longestProbe is the timeout of a probe, a lookup that measures how fast the database answers. A
// probe counts as longestProbe if it times out, or if an overloaded database refuses it.
const longestProbe = 5 * time.Second

// probe measures again and again how fast the database answers, until the context ends. The number
// of slots depends on the results.
func (b *background) probe(ctx context.Context, client *datastore.Client) {
	for ctx.Err() == nil {
		sent, key := time.Now(), b.probeKey()
		within, cancel := context.WithTimeout(ctx, longestProbe)
		err := client.Get(within, key, &datastore.PropertyList{})
		late := within.Err() != nil
		cancel()
		if ctx.Err() != nil {
			return
		}
		b.mu.Lock()
		took := time.Since(sent)
		// The database is overloaded, and refuses calls.
		if c := status.Code(err); c == codes.ResourceExhausted || c == codes.Unavailable {
			late, took = true, longestProbe
		}
		if late || errors.Is(err, datastore.ErrNoSuchEntity) {
			b.pace.Note(sent, took, b.wanted)
			b.wanted = 0
		}
		next := b.pace.NextProbe(sent)
		b.admit()
		b.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(sent.Add(next))):
		}
	}
}

// probeKey returns the key that probes look up. No entity has this key. It is near the latest page,
// so that the part of the database that serves the page also answers the probe.
func (b *background) probeKey() *datastore.Key {
	b.mu.Lock()
	defer b.mu.Unlock()
	root := b.near
	for root != nil && root.Parent != nil { // only the root, so that the key is short
		root = root.Parent
	}
	key := datastore.NameKey("ScattermapProbe", "probe", root)
	if root != nil {
		key.Namespace = root.Namespace
	}
	return key
}

// admit gives free slots to waiting pages, in order. The caller holds mu.
func (b *background) admit() {
	n, _ := b.pace.Slots()
	b.wanted = max(b.wanted, b.taken+len(b.waiting))
	if b.pace.Pauses(time.Now()) {
		return
	}
	for len(b.waiting) > 0 && b.taken < n {
		close(b.waiting[0])
		b.waiting = b.waiting[1:]
		b.taken++
	}
}

// ask asks for a slot for a page whose first entity has the given key. It returns a channel that is
// closed when the page gets its slot.
func (b *background) ask(key *datastore.Key) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := make(chan struct{})
	b.near, b.waiting = key, append(b.waiting, slot)
	b.admit()
	return slot
}

// insist gives a waiting page a slot at once, even if none is free.
func (b *background) insist(slot chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if i := slices.Index(b.waiting, slot); i >= 0 {
		b.waiting = slices.Delete(b.waiting, i, i+1)
		b.taken++
		close(slot)
	}
}

// quit is called if a page does not start. It returns the page's slot, or removes the page from the
// waiting pages.
func (b *background) quit(slot chan struct{}) {
	b.insist(slot)
	b.free()
}

// longestRest is the longest time for which a slot rests, which means that it stays unused after a
// page. This time has a limit because most of a long page is waits for the job's rate or for a
// service. Such waits put no load on the database.
const longestRest = 10 * time.Second

// rest frees the slot of a page after a rest, in which no page uses the slot. The parameter took is
// the page's duration. The rest is that time multiplied by a factor of [pace.Background.Slots].
func (b *background) rest(took time.Duration) {
	b.mu.Lock()
	_, factor := b.pace.Slots()
	b.mu.Unlock()
	if factor == 0 {
		b.free()
		return
	}
	time.AfterFunc(min(longestRest, time.Duration(factor*float64(took))), b.free)
}

func (b *background) free() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.taken--
	b.admit()
}

// giveWay waits for a slot if the job is a background job. The wait ends early if the page would
// otherwise no longer fit in the queue's dispatch deadline. During the wait, the delivery leaves
// the gate, so that other tasks may run exclusively in this process. If the job stops meanwhile,
// giveWay returns stopped. The caller calls freeSlot after the page.
func (d *delivery) giveWay(ctx context.Context, p planner.Plan) (freeSlot func(), s standing, err error) {
	if !d.job.Background || d.place.Exclusive || len(p.At) == 0 {
		return func() {}, ours, nil
	}
	b, asked := d.x.background, time.Now()
	slot := b.ask(p.At[0].Key)
	d.leave()
	for err == nil && s == ours {
		select {
		case <-slot:
			if s, err = d.enter(ctx, false); err != nil || s != ours {
				continue
			}
			from := time.Now()
			d.page.yielded = from.Sub(asked)
			return func() { b.rest(time.Since(from)) }, ours, nil
		case <-ctx.Done():
			err = ctx.Err()
		case <-d.x.Gate.Draining().Done():
			err = gate.ErrDraining
		case <-time.After(cachedFor):
			job, failed := d.x.runningJob(ctx, d.job.Ref())
			switch err = failed; {
			case err != nil:
			case job.State != record.Running:
				s = stopped
			case !d.mayStart():
				b.insist(slot)
			}
		}
	}
	b.quit(slot)
	return func() {}, s, err
}
