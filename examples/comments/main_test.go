package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
)

// comments runs the command, and returns its result.
func comments(t *testing.T, args ...string) (r result, err error) {
	t.Helper()
	c, err := parse(append(args, "-json"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := runProgram(t.Context(), c, &out); err != nil {
		return r, err
	}
	return r, json.Unmarshal(out.Bytes(), &r)
}

func TestComments(t *testing.T) {
	for _, args := range []string{"-comments 0", "-comments 500", "-comments 500 -databases 4", "-comments 300 -from 32 -to 20 -databases 1"} {
		t.Run(args, func(t *testing.T) {
			r, err := comments(t, strings.Fields(args)...)
			if err != nil {
				t.Fatal(err)
			}
			if r.Inserted == 0 && r.Read == 0 {
				t.Errorf("%+v: nobody has written or read meanwhile", r)
			}
		})
	}
}

// TestGoogle runs the example on Google's emulators, where they are installed.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			_, err := comments(t, "-datastore", name, "-comments", "60", "-databases", "1", "-writers", "2")
			if errors.Is(err, emulator.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestReshardUnderFaults moves comments while others insert, edit and read them, calls fail and deliveries come twice or to processes
// that crash; there and back.
func TestReshardUnderFaults(t *testing.T) {
	first := testflag.Seed(t)
	for i := range uint64(6) {
		t.Run(fmt.Sprint("seed ", first+i), func(t *testing.T) {
			mappertest.Run(t, mapper.Set(reshard, count), &mappertest.Options{Seed: first + i}, func(t *testing.T, w *mappertest.World) {
				s, err := NewStore(20, w.Client)
				if err != nil {
					t.Fatal(err)
				}
				s.now = func() time.Time { return time.Now().AddDate(30, 0, 0) } // the test's is in 2000
				l := newLoad(s)
				l.refused = func(err error) bool { return !errors.Is(err, errDiffers) && again(t.Context(), err) } // it has given up
				if err := l.fill(t.Context(), 800); err != nil {
					t.Fatal(err)
				}
				w.Trouble()
				for _, shards := range []int{32, 20} {
					underLoad(t, w, l, shards)
				}
				w.Calm()
				if _, err := l.check(t.Context()); err != nil {
					t.Error(err)
				}
				r := result{From: 32, To: 20}
				if err := r.look(t.Context(), w.Client, w.Engine); err != nil {
					t.Error(err)
				}
				if l.inserted == 0 || l.edited == 0 || l.read == 0 {
					t.Errorf("%d inserts, %d edits and %d reads", l.inserted, l.edited, l.read)
				}
			})
		})
	}
}

// underLoad moves the comments under a load. Whoever moves them is killed now and then, and somebody goes on.
func underLoad(t *testing.T, w *mappertest.World, l *load, shards int) {
	moved := make(chan struct{})
	var group sync.WaitGroup
	for range 5 {
		group.Go(func() {
			if err := l.work(t.Context(), moved); err != nil {
				t.Error(err)
			}
		})
	}
	for range 100 {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		err := l.store.Reshard(ctx, w.Engine, shards)
		cancel()
		if err == nil {
			close(moved)
			group.Wait()
			return
		}
	}
	close(moved)
	group.Wait()
	t.Fatalf("the comments are not in %d shards after a hundred attempts", shards)
}

// TestTwoProcesses has two processes insert into one shard, whose generators draw the same ids.
func TestTwoProcesses(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.Datastore(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	frozen := time.Now()
	const each = 200
	var mu sync.Mutex
	seen := make(map[ID]bool)
	var group sync.WaitGroup
	collisions := 0
	for range 2 {
		s, err := NewStore(20, client)
		if err != nil {
			t.Fatal(err)
		}
		g, err := s.generator(0, shardOf(7, 20))
		if err != nil {
			t.Fatal(err)
		}
		g.now = func() time.Time { return frozen } // so that both draw the same
		group.Go(func() {
			for range each {
				id, err := s.Insert(t.Context(), 7, "hello")
				mu.Lock()
				if err != nil || seen[id] {
					t.Errorf("%d, %v, drawn before: %v", id, err, seen[id])
				}
				seen[id] = true
				mu.Unlock()
			}
			mu.Lock()
			collisions += int(g.next) - each
			mu.Unlock()
		})
	}
	group.Wait()
	s, _ := NewStore(20, client)
	all, err := s.ByOrder(t.Context(), 7)
	if err != nil || len(all) != 2*each {
		t.Errorf("%d comments, %v, want %d", len(all), err, 2*each)
	}
	if collisions == 0 {
		t.Error("the two have never drawn the same ID")
	}
}

// TestLostAnswer has the answer to an insert, or to an edit, be lost, and others edit the comment before the next attempt: it has taken effect
// once.
func TestLostAnswer(t *testing.T) {
	for _, edit := range []bool{false, true} {
		t.Run(fmt.Sprint("edit ", edit), func(t *testing.T) {
			e := emulator.ForTest(t, nil)
			plain, err := e.Datastore(t.Context(), "test")
			if err != nil {
				t.Fatal(err)
			}
			defer plain.Close()
			other, err := NewStore(20, plain)
			if err != nil {
				t.Fatal(err)
			}
			var armed atomic.Bool
			lose := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				err := invoke(ctx, method, req, reply, cc, opts...)
				if c, ok := req.(*pb.CommitRequest); !ok || err != nil || len(c.Mutations) == 0 || !armed.CompareAndSwap(true, false) {
					return err
				}
				all, err := other.ByOrder(ctx, 7)
				for range 3 {
					if err == nil {
						err = other.Edit(ctx, 7, all[0].ID, "theirs")
					}
				}
				if err != nil {
					t.Error(err)
				}
				return status.Error(codes.Unavailable, "the answer is lost")
			}
			client, err := e.Datastore(t.Context(), "test", option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(lose)))
			if err != nil {
				t.Fatal(err)
			}
			defer client.Close()
			s, err := NewStore(20, client)
			if err != nil {
				t.Fatal(err)
			}
			armed.Store(!edit)
			id, err := s.Insert(t.Context(), 7, "mine")
			if err == nil && edit {
				armed.Store(true)
				err = s.Edit(t.Context(), 7, id, "mine, too")
			}
			if err != nil || armed.Load() {
				t.Fatal(err, armed.Load())
			}
			want := int64(3)
			if edit {
				want = 4
			}
			all, err := other.ByOrder(t.Context(), 7)
			if err != nil || len(all) != 1 || all[0].ID != id || all[0].Text != "theirs" || all[0].Edits != want {
				t.Errorf("%+v, %v; want one comment, %d, as others have edited it last, after %d edits", all, err, id, want)
			}
		})
	}
}

// TestNoOrder has numbers that are no order be refused.
func TestNoOrder(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.Datastore(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := NewStore(20, client, client)
	if err != nil {
		t.Fatal(err)
	}
	_, inserting := s.Insert(t.Context(), -ordersAShard, "x")
	_, reading := s.ByOrder(t.Context(), -ordersAShard)
	for _, err := range []error{inserting, reading, s.Edit(t.Context(), -ordersAShard, 1, "x")} {
		if err == nil || !strings.Contains(err.Error(), "-300000 is negative") {
			t.Errorf("%v, want an error that names the order", err)
		}
	}
}

// TestList has lists of all shards in both orders, with an offset and a limit.
func TestList(t *testing.T) {
	e := emulator.ForTest(t, nil)
	client, err := e.Datastore(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	s, err := NewStore(20, client)
	if err != nil {
		t.Fatal(err)
	}
	var ids []ID
	for i := range 60 {
		id, err := s.Insert(t.Context(), int64(i)*ordersAShard, "hello")
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
		time.Sleep(time.Millisecond)
	}
	for _, r := range []Range{{Limit: 10}, {Limit: 7, Offset: 30}, {Limit: 10, Offset: 55}, {Limit: 1, Offset: 60}, {Newest: true, Limit: 10}, {Newest: true, Limit: 20, Offset: 50}} {
		got, err := s.List(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		for i := range max(len(got), min(r.Limit, max(0, 60-r.Offset))) {
			want := ids[min(59, r.Offset+i)]
			if r.Newest {
				want = ids[max(0, 59-r.Offset-i)]
			}
			if i >= len(got) || got[i].ID != want {
				t.Fatalf("%+v: %d comments, the one at %d is not %d", r, len(got), i, want)
			}
		}
	}
	if _, err := s.List(t.Context(), Range{}); err == nil {
		t.Error("a list without a limit")
	}
}

// TestShards has the rule of shards.
func TestShards(t *testing.T) {
	for order, want := range map[int64]int{0: 0, 299_999: 0, 300_000: 1, 5_999_999: 19, 6_000_000: 0} {
		if got := shardOf(order, 20); got != want {
			t.Errorf("order %d is in shard %d of 20, want %d", order, got, want)
		}
	}
	if _, err := NewStore(20, make([]*datastore.Client, 3)...); err == nil {
		t.Error("20 shards in 3 databases")
	}
	if again(context.Background(), status.Error(codes.InvalidArgument, "")) {
		t.Error("what is wrong is tried again")
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-comments -1":     "-comments",
		"-databases 9":     "-databases",
		"-from 21":         "-from 21",
		"-to 129":          "-to",
		"-from 32":         "both 32",
		"-datastore cloud": `-datastore is "cloud"`,
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
}
