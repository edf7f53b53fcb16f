package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"
	"github.com/google/go-cmp/cmp"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// A readout records the users that the function of a Visit gets. The function may get the same user
// several times.
type readout struct {
	mu    sync.Mutex
	users map[string]user
	other []string // keys of users that the function has got in two different states
}

// visit returns a mapper that reads users. Its function takes the time each for a user, and the
// time some in addition for a few.
func (r *readout) visit(each, some time.Duration) *mapper.Mapper[mapper.NoParams] {
	r.users = make(map[string]user)
	return mapper.Visit("read", func(ctx context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if time.Sleep(each); u.Key.ID%50 == 0 {
			time.Sleep(some)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		key := u.Key.String()
		if had, ok := r.users[key]; ok && had != u.Value {
			r.other = append(r.other, key)
		}
		r.users[key] = u.Value
		return nil
	})
}

// disturb changes, deletes and inserts users until ctx ends.
func (w *world) disturb(ctx context.Context, rng *rand.Rand, keys []*datastore.Key) {
	for ctx.Err() == nil {
		i := rng.IntN(len(keys))
		var err error
		switch u := (user{UserID: rng.Int64N(1 << 20), Active: true, Plan: "pro", Joined: epoch, Score: 50,
			Name: "new"}); rng.IntN(3) {
		case 0:
			_, err = w.client.Put(ctx, keys[i], &u)
		case 1:
			err = w.client.Delete(ctx, keys[i])
		case 2:
			_, err = w.client.Put(ctx, datastore.IDKey("User", 1+rng.Int64N(1<<50), keys[i].Parent), &u)
		}
		if err != nil && ctx.Err() == nil {
			w.Error(err)
			return
		}
		time.Sleep(time.Second / 2)
	}
}

// TestReadTime runs jobs with a Query.ReadTime over each form of query. The jobs take longer than a
// transaction may live. They must get the users as of that time, although others change, delete and
// insert users meanwhile.
func TestReadTime(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	n := testflag.Size(t, 60, 90, 250)
	for name, test := range queries {
		for _, keysOnly := range []bool{false, true} {
			if keysOnly && test.query.ShardBy != "" {
				continue // a query that is refused
			}
			batch := 40 // enough that a batch takes longer than a transaction may live
			if keysOnly {
				batch = 2
			}
			t.Run(fmt.Sprint(name, keysOnly), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					var r readout
					read := r.visit(2*time.Second, 90*time.Second) // a transaction lives for 60 s without a call
					var log logged
					w := newWorld(t, setting{emulator: emulator.Options{QueryBatchSize: batch}, log: &log}, read)
					keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), n)
					want := make(map[string]user)
					for i, k := range keys {
						if test.want(k, users[i]) {
							if want[k.String()] = users[i]; keysOnly {
								want[k.String()] = user{}
							}
						}
					}
					time.Sleep(time.Second)
					q := test.query
					q.Kind, q.ReadTime, q.KeysOnly = "User", time.Now(), keysOnly
					time.Sleep(time.Second)
					job, err := read.Start(t.Context(), w.engine, q, mapper.NoParams{},
						&mapper.StartOptions{PageSize: 100, ExpectedWorkers: 2, EntityTimeout: 2 * time.Minute})
					if err != nil {
						t.Fatal(err)
					}
					ctx, stop := context.WithCancel(t.Context())
					var disturbed sync.WaitGroup
					disturbed.Go(func() { w.disturb(ctx, rand.New(rand.NewPCG(2, 0)), keys) })
					s, err := job.Wait(t.Context())
					stop()
					disturbed.Wait()
					if err != nil || s.State != mapper.StateSucceeded || s.Processed != int64(len(want)) ||
						s.Failures != 0 {
						t.Errorf("%+v, %v; want %d processed", s, err, len(want))
					}
					if strings.Contains(log.String(), "expired") {
						t.Errorf("a scan was read on for too long:\n%.1000s", log.String())
					}
					for k, u := range r.users {
						u.Joined = u.Joined.UTC()
						if keysOnly {
							u.Joined = time.Time{}
						}
						r.users[k] = u
					}
					if diff := cmp.Diff(want, r.users); diff != "" || len(r.other) > 0 {
						t.Errorf("the job saw others than there were (-want +got), and %d in two ways:\n%.2000s",
							len(r.other), diff)
					}
				})
			})
		}
	}
}

// TestReadTimeGone runs a job for longer than the database can read its ReadTime. The job must fail
// with an error that says so. A ReadTime that is too old already at the start, or in the future,
// must also fail. So must a plan and a verification with such a time.
func TestReadTimeGone(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r readout
		read := r.visit(time.Second, 0)
		w := newWorld(t, setting{emulator: emulator.Options{Retention: 3 * time.Minute}, queue: few(2)}, read)
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 1000)
		time.Sleep(time.Second)
		q := mapper.Query{Kind: "User", ReadTime: time.Now()}
		time.Sleep(time.Second)
		job, err := read.Start(t.Context(), w.engine, q, mapper.NoParams{}, &mapper.StartOptions{PageSize: 10})
		if err != nil {
			t.Fatal(err)
		}
		const gone = "can't be read as it was at 2000-"
		for range 2 { // resume the job, which must fail again
			s, err := job.Wait(t.Context())
			if err != nil || s.State != mapper.StateFailed || !strings.Contains(s.Error, gone) || s.Processed == 0 {
				t.Fatalf("status %+v, %v", s, err)
			}
			if err := job.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if s, err := job.Wait(t.Context()); err != nil || s.State != mapper.StateFailed {
			t.Errorf("status %+v, %v", s, err)
		}
		for _, at := range []time.Time{q.ReadTime, time.Now().Add(time.Hour)} {
			q.ReadTime = at
			if _, err := read.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), gone) {
				t.Errorf("at %v: %v", at, err)
			}
			if _, err := lookAt.Plan(t.Context(), w.engine, q, nil); !errors.Is(err,
				mapper.ErrInvalidArgument) {
				t.Errorf("plan at %v: %v", at, err)
			}
			if _, err := job.Verify(t.Context(), &mapper.VerifyOptions{Entities: true, ReadTime: at}); !errors.Is(err,
				mapper.ErrInvalidArgument) || !strings.Contains(fmt.Sprint(err), gone) {
				t.Errorf("verify at %v: %v", at, err)
			}
		}
	})
}

// TestKeysOnly runs jobs whose query returns only keys: a Visit, and an Update that deletes the
// entities. An Update that changes a Value must fail, and lose nothing.
func TestKeysOnly(t *testing.T) {
	testflag.Sequential(t)
	t.Parallel()
	var r readout
	read := r.visit(0, 0)
	remove := mapper.Update("remove", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		if u.Value != (user{}) {
			return errors.New("it was read")
		}
		u.Delete(u.Key)
		return nil
	})
	change := mapper.Update("change", func(_ context.Context, u *mapper.Entity[user], _ mapper.NoParams) error {
		u.Value.Active = true
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		const n = 5000
		w := newWorld(t, setting{}, read, remove, change)
		keys, users := w.putUsers(rand.New(rand.NewPCG(1, 0)), n)
		run := func(m *mapper.Mapper[mapper.NoParams]) (*mapper.Status, int64) {
			used := w.emulator.Usage()
			job, err := m.Start(t.Context(), w.engine, mapper.Query{Kind: "User", KeysOnly: true}, mapper.NoParams{},
				&mapper.StartOptions{PageSize: 100, ExpectedWorkers: 10, FailureLimit: -1})
			if err != nil {
				t.Fatal(err)
			}
			s, err := job.Wait(t.Context())
			if err != nil || s.OpenRanges > 0 {
				t.Fatalf("status %+v, %v", s, err)
			}
			return s, w.emulator.Usage().Sub(used).Reads
		}
		if s, reads := run(read); s.Processed != n || len(r.users) != n || reads > n/4 {
			t.Errorf("%+v, %d users, %d reads", s, len(r.users), reads)
		}
		if s, _ := run(change); s.Processed != 0 || s.Failures != n {
			t.Errorf("status %+v", s)
		}
		now := make([]user, 100)
		if err := w.client.GetMulti(t.Context(), keys[:100], now); err != nil {
			t.Fatal(err)
		}
		for i, u := range now {
			if u.Joined = u.Joined.UTC(); u != users[i] {
				t.Errorf("%+v has become %+v", users[i], u)
			}
		}
		if s, reads := run(remove); s.Processed != n || reads > n/4 {
			t.Errorf("%+v, %d reads", s, reads)
		}
		if left, err := w.client.Count(t.Context(), datastore.NewQuery("User")); err != nil || left != 0 {
			t.Errorf("%d users are left, %v", left, err)
		}
	})
}

// TestStartRepeated repeats the start of a job when the database can no longer read the job's
// ReadTime. It must return the job.
func TestStartRepeated(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var r readout
		read := r.visit(0, 0)
		w := newWorld(t, setting{}, read)
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 10)
		time.Sleep(time.Second)
		q := mapper.Query{Kind: "User", ReadTime: time.Now()}
		for range 2 {
			time.Sleep(time.Second)
			job, err := read.Start(t.Context(), w.engine, q, mapper.NoParams{}, &mapper.StartOptions{ID: "same"})
			if err != nil {
				t.Fatal(err)
			}
			if s := w.wait(job); s.Processed != 10 {
				t.Errorf("status %+v", s)
			}
			time.Sleep(2 * time.Hour)
		}
		if _, err := read.Start(t.Context(), w.engine, q, mapper.NoParams{}, nil); !errors.Is(err,
			mapper.ErrInvalidArgument) {
			t.Errorf("another job: %v", err)
		}
	})
}

// A strict is a user whose Save method fails without an ID.
type strict struct{ UserID int64 }

func (s *strict) Load(p []datastore.Property) error { return datastore.LoadStruct(s, p) }

func (s *strict) Save() ([]datastore.Property, error) {
	if s.UserID == 0 {
		return nil, errors.New("it has no id")
	}
	return datastore.SaveStruct(s)
}

// TestKeysOnlyUnsaved runs a keys-only job whose Go type can't save its zero value.
func TestKeysOnlyUnsaved(t *testing.T) {
	t.Parallel()
	remove := mapper.Update("remove", func(_ context.Context, u *mapper.Entity[strict], _ mapper.NoParams) error {
		u.Delete(u.Key)
		return nil
	})
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, setting{}, remove)
		w.putUsers(rand.New(rand.NewPCG(1, 0)), 30)
		job, err := remove.Start(t.Context(), w.engine, mapper.Query{Kind: "User", KeysOnly: true}, mapper.NoParams{},
			nil)
		if err != nil {
			t.Fatal(err)
		}
		if s := w.wait(job); s.Processed != 30 || s.Failures != 0 {
			t.Errorf("status %+v", s)
		}
	})
}
