package page

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/pbvalue"
	"github.com/scattermap/scattermap/mapper/internal/fault"
	"github.com/scattermap/scattermap/mapper/internal/function"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
	"github.com/scattermap/scattermap/mapper/internal/pace"
	"github.com/scattermap/scattermap/mapper/internal/property"
	"github.com/scattermap/scattermap/mapper/internal/query"
	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/wire"
)

// A kind has a test's entities: the value of N by ID. At first, each entity has version 1.
type kind struct {
	n, version map[int64]int64
	looks      [][]int64 // the IDs of each lookup
	down       error

	mu sync.Mutex // guards looks
}

func kindOf(ids ...int64) *kind {
	k := &kind{n: make(map[int64]int64), version: make(map[int64]int64)}
	for _, id := range ids {
		k.put(id, id)
	}
	return k
}

// put writes an entity, as another client would.
func (k *kind) put(id, n int64) {
	k.n[id] = n
	k.version[id]++
}

func keyOf(id int64) *datastore.Key { return datastore.IDKey("K", id, nil) }

func entityOf(id, n int64) *pb.Entity {
	return &pb.Entity{Key: pbvalue.Key(keyOf(id)), Properties: map[string]*pb.Value{
		"N": {ValueType: &pb.Value_IntegerValue{IntegerValue: n}}}}
}

// stamp returns an entity as stored, with its version.
func (k *kind) stamp(id int64) wire.Stamp {
	n, there := k.n[id]
	if !there {
		return wire.Stamp{Gone: true}
	}
	return wire.Stamp{Version: k.version[id], Entity: entityOf(id, n)}
}

func (k *kind) get(keys []*datastore.Key, _ ...any) (all []wire.Stamp, err error) {
	var ids []int64
	for _, key := range keys {
		ids = append(ids, key.ID)
		all = append(all, k.stamp(key.ID))
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.looks = append(k.looks, ids)
	return all, k.down
}

// A call is a call of the function for one entity, with the entity's ID and N. The function may
// change N.
type call struct {
	context.Context
	*function.Attempt
	id, n int64
}

// sees returns N of another entity. It is negative if the entity does not exist or cannot be
// read.
func (c *call) sees(id int64) int64 {
	n := int64(-2)
	missing, err := c.Get(c, []*datastore.Key{keyOf(id)}, func(_ int, e *pb.Entity) error {
		n = e.Properties["N"].GetIntegerValue()
		return nil
	})
	if err == nil && missing[0] {
		return -1
	}
	return n
}

// over returns a page of the entities with the given IDs, over which a function runs.
func over(k *kind, mode function.Mode, fn func(c *call) error, ids ...int64) *Page {
	p := &Page{
		Job: &record.Job{ID: "j", Timeout: int64(time.Minute), PageTime: int64(10 * time.Second)}, Mode: mode,
		Query: query.Query{Kind: "K"}, Others: k.get, Attempts: 1, Ends: func() bool { return false },
		Paces: new(pace.Book[record.Ref]), Strays: new(atomic.Int64), Announced: new(atomic.Int64),
	}
	for _, id := range ids {
		p.At = append(p.At, keyspace.At(keyOf(id)))
	}
	p.Read = func(at []*keyspace.Position) (all []wire.Stamp, err error) {
		for _, at := range at {
			all = append(all, k.stamp(at.Key.ID))
		}
		return all, nil
	}
	run := func(ctx context.Context, s function.Subject) (*function.Effect, error) {
		a := function.NewAttempt(s.Job.Ref, mode, s.Key)
		a.Among(s.Job.Others)
		a.Announce(s.Job.Calls)
		was := s.Stored.GetProperties()["N"].GetIntegerValue()
		c := &call{ctx, a, s.Key.ID, was}
		if err := a.Run(func() error { return fn(c) }); err != nil {
			return nil, err
		}
		if c.n != was {
			a.Save(property.NewEdit(s.Stored, entityOf(s.Key.ID, c.n).Properties), true)
		}
		return a.Effect()
	}
	p.Call = func(ctx context.Context, j function.Job, key *datastore.Key, e *pb.Entity) (_ *function.Effect,
		err error) {
		defer function.Recovered(&err)
		return run(ctx, function.Subject{Job: j, Key: key, Stored: e})
	}
	p.Batch = func(ctx context.Context, batch []function.Subject) (all []function.Answer, err error) {
		defer function.Recovered(&err)
		for _, s := range batch {
			e, err := run(ctx, s)
			if errors.Is(err, errWhole) {
				return nil, err
			}
			all = append(all, function.Answer{Effect: e, Err: err})
		}
		return all, nil
	}
	next := int64(1000)
	p.Complete = func(_ context.Context, keys []*datastore.Key) (all []*datastore.Key, err error) {
		for range keys {
			next++
			all = append(all, keyOf(next))
		}
		return all, nil
	}
	return p
}

// idsOf returns the IDs of keys as text.
func idsOf(keys []*datastore.Key) string {
	var all []string
	for _, key := range keys {
		all = append(all, fmt.Sprint(key.ID))
	}
	return strings.Join(all, " ")
}

// said describes a page's results as text: the number of entities reached, and the outcome of each.
func said(o *Results) string {
	text := fmt.Sprintf("%d reached, %d done", o.Reached, o.Processed)
	var failed []string
	for _, f := range o.Failures {
		what := fmt.Sprint(f.At.Key.ID)
		if f.Permanent {
			what += " permanently"
		}
		failed = append(failed, what)
	}
	for _, is := range []struct{ what, of string }{
		{"wrote", idsOf(o.Own)}, {"deleted", idsOf(o.Gone)}, {"wrote others", idsOf(o.Others)},
		{"failed", strings.Join(failed, ", ")}, {"collected", strings.Trim(fmt.Sprint(o.Collected), "[]")},
	} {
		if is.of != "" {
			text += "; " + is.what + " " + is.of
		}
	}
	return text
}

// errBad is an error of an entity, and errWhole of its whole batch.
var errBad, errWhole = errors.New("bad"), errors.New("bad batch")

// A runCase is a case of TestRun: a function, and the results of its page.
type runCase struct {
	name string
	mode function.Mode
	fn   func(c *call) error
	with func(p *Page, k *kind) // changes the page before it runs
	want string

	together string // the results with overlapping calls, if they differ
	batch    string // the results with one batch of all entities, if they differ
}

// A runWay says how many calls of the function may overlap, and how many entities each has. 0 means
// one.
type runWay struct{ atOnce, batch int }

// TestRun runs functions over pages of the entities 1, 2, 3. N of each entity is its ID.
func TestRun(t *testing.T) {
	for _, c := range []runCase{
		{name: "nothing changes", fn: func(*call) error { return nil }, want: "3 reached, 3 done"},
		{name: "all change", fn: func(c *call) error { c.n++; return nil }, want: "3 reached, 3 done; wrote 1 2 3"},
		{name: "a visit", mode: function.Visit, fn: func(c *call) error { c.Count("seen", 1); return nil },
			want: "3 reached, 3 done"},
		{name: "one is deleted, one puts another", fn: func(c *call) error {
			switch c.id {
			case 1:
				c.Delete(keyOf(1))
			case 2:
				c.Put(keyOf(20), &struct{ N int }{1})
			}
			return nil
		}, want: "3 reached, 3 done; wrote 1; deleted 1; wrote others 20"},
		{name: "one has gone", fn: func(c *call) error { c.n++; return nil },
			with: func(_ *Page, k *kind) { delete(k.n, 2) }, want: "3 reached, 2 done; wrote 1 3"},
		{name: "one fails: the rest goes on", fn: func(c *call) error {
			if c.n++; c.id == 2 {
				return errBad
			}
			return nil
		}, want: "3 reached, 2 done; wrote 1 3; failed 2"},
		{name: "one fails permanently", fn: func(c *call) error {
			if c.id == 1 {
				return fault.Permanent(errBad)
			}
			return nil
		}, want: "3 reached, 2 done; failed 1 permanently"},
		{name: "one panics", fn: func(c *call) error {
			if c.id == 3 {
				panic("ouch")
			}
			return nil
		}, want: "3 reached, 2 done; failed 3"},
		{name: "one fails its batch: the rest goes on", fn: func(c *call) error {
			if c.n++; c.id == 2 {
				return errWhole
			}
			return nil
		}, want: "3 reached, 2 done; wrote 1 3; failed 2"},
		{name: "one ends its goroutine: the rest has another", fn: func(c *call) error {
			if c.id == 1 {
				runtime.Goexit()
			}
			return nil
		}, want: "3 reached, 2 done; failed 1", batch: "a batch of 3: the function ended its goroutine"},
		{name: "one hangs: what an Update has read is old then", fn: func(c *call) error {
			if c.id == 2 {
				time.Sleep(2 * time.Minute)
			}
			return nil
		}, with: func(p *Page, _ *kind) { p.Job.PageTime = int64(time.Hour) }, want: "2 reached, 1 done; failed 2",
			together: "3 reached, 2 done; failed 2",
			batch:    "a batch of 3: the function took too long on an entity: more than 1m0s"},
		{name: "one hangs in a visit: the rest goes on", mode: function.Visit, fn: func(c *call) error {
			if c.id == 2 {
				time.Sleep(2 * time.Minute)
			}
			return nil
		}, with: func(p *Page, _ *kind) { p.Job.PageTime = int64(time.Hour) }, want: "3 reached, 2 done; failed 2",
			batch: "a batch of 3: the function took too long on an entity: more than 1m0s"},
		{name: "the page has taken its time, and what is left does not fit", fn: func(*call) error {
			time.Sleep(15 * time.Second)
			return nil
		}, want: "1 reached, 1 done", together: "3 reached, 3 done", batch: "3 reached, 3 done"},
		{name: "little is left: it may take twice its time", fn: func(*call) error {
			time.Sleep(6 * time.Second)
			return nil
		}, want: "3 reached, 3 done"},
		{name: "the process needs the page to end", fn: func(*call) error { return nil },
			with: func(p *Page, _ *kind) { p.Ends = func() bool { return true } }, want: "1 reached, 1 done",
			batch: "3 reached, 3 done"},
		{name: "others wait for what is left", fn: func(*call) error { return nil },
			with: func(p *Page, _ *kind) { p.Late = func(_ *Results, _, left int) bool { return left == 1 } },
			want: "2 reached, 2 done", together: "3 reached, 3 done", batch: "3 reached, 3 done"},
		{name: "an entity of the page is put before it: it is for the next one", fn: func(c *call) error {
			if c.id == 1 {
				c.Put(keyOf(2), &struct{ N int }{9})
			}
			return nil
		}, want: "1 reached, 1 done; wrote others 2"},
		{name: "two insert one entity: the second finds that it is there", fn: func(c *call) error {
			if c.id != 2 {
				c.Insert(keyOf(20), &struct{ N int }{1})
			}
			return nil
		}, want: "3 reached, 2 done; wrote others 20; failed 3 permanently"},
		{name: "two restore one entity over a version: the second is for the next page", fn: func(c *call) error {
			if c.id != 2 {
				c.Restore(keyOf(20), entityOf(20, 5), 4)
			}
			return nil
		}, want: "2 reached, 2 done; wrote others 20"},
		{name: "new entities have keys", fn: func(c *call) error {
			c.Put(datastore.IncompleteKey("K", nil), &struct{ N int }{1})
			return nil
		}, want: "3 reached, 3 done; wrote others 1001 1002 1003"},
		{name: "values are collected in the order of keys", fn: func(c *call) error {
			c.Collect(10 * c.id)
			return nil
		},
			want: "3 reached, 3 done; collected 10 20 30"},
		{name: "an entity that the filter does not have any more", fn: func(*call) error { return nil },
			with: func(p *Page, k *kind) {
				p.Query.Filters = []query.Filter{{Property: "N", Op: "<", Value: int64(10)}}
				k.put(2, 10)
			}, want: "3 reached, 2 done"},
		{name: "an entity moves in the order of the query", fn: func(c *call) error { c.n += 2 - c.id; return nil },
			with: func(p *Page, _ *kind) {
				p.Query.ShardBy = "N"
				for i := range p.At {
					p.At[i] = &keyspace.Position{Valued: true, Value: int64(i + 1), Key: p.At[i].Key}
				}
			}, want: "3 reached, 1 done; failed 1 permanently, 3 permanently"},
	} {
		for _, way := range []runWay{{1, 0}, {3, 0}, {50, 0}, {1, 1}, {1, 3}, {3, 500}} {
			t.Run(fmt.Sprint(c.name, ", ", way.atOnce, " at once, batches of ", way.batch), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { c.check(t, way) })
			})
		}
	}
}

// check runs the page in one way, in a synctest bubble.
func (c runCase) check(t *testing.T, way runWay) {
	k := kindOf(1, 2, 3)
	var runs atomic.Int64
	p := over(k, c.mode, func(of *call) error {
		runs.Add(1)
		return c.fn(of)
	}, 1, 2, 3)
	p.AtOnce, p.BatchSize = way.atOnce, way.batch
	if c.with != nil {
		c.with(p, k)
	}
	o, err := p.Run(t.Context())
	var got string
	if batch := new(BatchError); errors.As(err, batch) {
		got = err.Error()
	} else if err != nil {
		t.Fatal(err)
	} else {
		got = said(o)
	}
	want := c.want
	switch {
	case way.batch > 1 && c.batch != "":
		want = c.batch
	case way.batch <= 1 && way.atOnce > 1 && c.together != "":
		want = c.together
	}
	if got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	// The brake must be told the end of each call: otherwise it would count the call as under way.
	if told := p.Paces.Brake(p.Job.Ref()).Lately().All; way.batch <= 1 && told != int(runs.Load()) {
		t.Errorf("the brake knows of the end of %d runs, of %d", told, runs.Load())
	}
	time.Sleep(time.Hour) // until the hanging call has returned
}

// TestRunErrors checks errors from reads, and from other functions on which a page depends.
func TestRunErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		with func(p *Page)
	}{
		{"entities can't be read", func(p *Page) {
			p.Read = func([]*keyspace.Position) ([]wire.Stamp, error) { return nil, errBad }
		}},
		{"new keys can't be had", func(p *Page) {
			p.Complete = func(context.Context, []*datastore.Key) ([]*datastore.Key, error) { return nil, errBad }
		}},
	} {
		p := over(kindOf(1), function.Update, func(c *call) error {
			c.Put(datastore.IncompleteKey("K", nil), &struct{ N int }{1})
			return nil
		}, 1)
		c.with(p)
		if _, err := p.Run(t.Context()); !errors.Is(err, errBad) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	p := over(kindOf(1), function.Update, func(*call) error { return nil }, 1)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("its delivery has ended: %v", err)
	}
}

// TestTells checks that a page reports its progress and the job's speed.
func TestTells(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := over(kindOf(1, 2, 3, 4), function.Update, func(c *call) error {
			time.Sleep(time.Second)
			c.n++
			return nil
		}, 1, 2, 3, 4)
		var told []string
		p.Progress = func(ran time.Duration, nearly bool) { told = append(told, fmt.Sprint(ran, " ", nearly)) }
		o, err := p.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(told, []string{"1s false", "2s false", "3s true", "4s true"}) {
			t.Errorf("told %q", told)
		}
		pace := p.Paces.Get(p.Job.Ref())
		if pace.Entities != 4 || pace.Writes != 4 || pace.Each() != time.Second {
			t.Errorf("the job's pace: %+v", pace)
		}
		if o.Ran != 4*time.Second || o.Each() != time.Second {
			t.Errorf("it ran for %v, %v each", o.Ran, o.Each())
		}
	})
}

// TestBrakes checks a function that calls a service with a limit of 20 calls a second. The page
// must slow down until most calls succeed.
func TestBrakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var ids []int64
		for id := range int64(200) {
			ids = append(ids, id+1)
		}
		taken := time.Now()
		p := over(kindOf(ids...), function.Visit, func(*call) error {
			time.Sleep(5 * time.Millisecond)
			if time.Since(taken) < 50*time.Millisecond {
				return errBad
			}
			taken = time.Now()
			return nil
		}, ids...)
		p.Pause, p.Job.PageTime = time.Second, int64(time.Hour)
		o, err := p.Run(t.Context())
		if err != nil || o.Reached != 200 {
			t.Fatalf("%d reached, %v", o.Reached, err)
		}
		if len(o.Failures) > 100 { // without the brake, 180 calls would fail
			t.Errorf("%d of 200 calls failed", len(o.Failures))
		}
	})
}

// TestSlowReads checks that the function's time does not include the page's reads, and that the
// average size of an entity is measured.
func TestSlowReads(t *testing.T) {
	for _, way := range []runWay{{1, 0}, {2, 0}, {1, 2}} {
		synctest.Test(t, func(t *testing.T) {
			p := over(kindOf(1, 2, 3), function.Visit, func(*call) error { return nil }, 1, 2, 3)
			p.AtOnce, p.BatchSize = way.atOnce, way.batch
			read := p.Read
			p.Read = func(at []*keyspace.Position) ([]wire.Stamp, error) {
				time.Sleep(time.Second)
				return read(at)
			}
			o, err := p.Run(t.Context())
			if err != nil || o.Ran != 0 || o.Spent < time.Second {
				t.Errorf("%+v: the function ran for %v of %v: %v", way, o.Ran, o.Spent, err)
			}
			bytes := 0
			for id := range int64(3) {
				bytes += keyspace.EntitySize(entityOf(id+1, id+1))
			}
			if got := p.Paces.Get(p.Job.Ref()); got.Entities != 3 || got.Bytes != int64(bytes) {
				t.Errorf("%+v: %d entities have %d bytes, want %d", way, got.Entities, got.Bytes, bytes)
			}
		})
	}
}
