package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/api/option"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/google"
	"github.com/scattermap/scattermap/internal/nightly"
	"github.com/scattermap/scattermap/internal/testflag"
)

// newStore returns an empty store with 20 shards in several databases.
func newStore(t *testing.T, databases int, interceptors ...grpc.UnaryClientInterceptor) *Store {
	t.Helper()
	var open []Open
	for range databases {
		open = append(open, opener(t, emulator.ForTest(t, nil), interceptors...))
	}
	return openStore(t, open...)
}

func openStore(t *testing.T, open ...Open) *Store {
	t.Helper()
	s, err := OpenStore(t.Context(), 20, open...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// opener returns a function that opens clients of an emulator. The interceptors see the calls that
// reach the database.
func opener(t *testing.T, e *emulator.Emulator, interceptors ...grpc.UnaryClientInterceptor) Open {
	return func(opts ...option.ClientOption) (*datastore.Client, error) {
		opts = append(opts, option.WithGRPCDialOption(grpc.WithChainUnaryInterceptor(interceptors...)))
		return e.DatastoreClient(t.Context(), "test", opts...)
	}
}

// plainClient returns a client of a new, empty Datastore, in which comments have a single kind.
func plainClient(t *testing.T) *datastore.Client {
	t.Helper()
	client, err := emulator.ForTest(t, nil).DatastoreClient(t.Context(), "test")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

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
	some := testflag.Size(t, 200, 200, 500) // ten in each of the 20 shards
	for _, args := range []string{"-comments 0 -things 50", fmt.Sprintf("-comments %d -things 50", some),
		fmt.Sprintf("-comments %d -databases 4 -things 20", some),
		fmt.Sprintf("-comments %d -from 32 -to 20 -databases 1 -things 0", some)} {
		t.Run(args, func(t *testing.T) {
			r, err := comments(t, strings.Fields(args)...)
			if err != nil {
				t.Fatal(err)
			}
			if r.Inserted == 0 && r.Read == 0 {
				t.Errorf("%+v: no client has written or read during the move", r)
			}
			if r.Derivation.MostRows != 2 || r.Notes == 0 && !strings.HasSuffix(args, "0") {
				t.Errorf("%+v: no derivation, or no notes", r)
			}
		})
	}
}

// TestPrinted checks the numbers that the program prints.
func TestPrinted(t *testing.T) {
	c, err := parse(strings.Fields("-comments 50 -databases 1 -things 20 -writers 1"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := runProgram(t.Context(), c, &out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"20 shards of 300000 in turn", "fill a shard in 9 days", "after 180 days",
		"in 2 shards at most", "each turn has 300000 orders",
		"33% of the orders have 2", "the same of both", "from 20 to 32 logical shards of 1 database"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the program does not print %q:\n%s", want, &out)
		}
	}
	for _, r := range []result{{}, {Notes: 1_000_000, Comments: 1_000_000, Inserted: 1_000_000, Deleted: 1_000_000,
		Edited: 1_000_000, Read: 1_000_000, Databases: 8, From: 120, To: 128, Largest: 1_000_000,
		MostEdits: 1_000_000}} {
		out.Reset()
		if err := r.print(&out, false); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(out.String()) {
			if len(line) > 81 {
				t.Errorf("the line %q has %d columns, want up to 80", line, len(line)-1)
			}
		}
		for _, claim := range []string{"the same of both", "No reader missed", "edits.", "edited most"} {
			if strings.Contains(out.String(), claim) != (r.Read > 0) {
				t.Errorf("after %d reads and %d edits it prints, or does not: %q", r.Read, r.Edited, claim)
			}
		}
	}
}

// TestUncounted checks the flag for a database without aggregation queries, such as Google's
// classic emulator: the caller does not count.
func TestUncounted(t *testing.T) {
	refuse := func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker,
		opts ...grpc.CallOption) error {
		if _, ok := req.(*pb.RunAggregationQueryRequest); ok {
			return status.Error(codes.Unimplemented, "aggregations are not implemented")
		}
		return invoke(ctx, method, req, reply, cc, opts...)
	}
	if n, err := compare(t.Context(), plainClient(t), newStore(t, 1, refuse), 1, 50, false); err != nil || n == 0 {
		t.Errorf("%d notes, %v", n, err)
	}
}

// TestGoogle runs the example on Google's Firestore emulator if it is installed, and at night also
// on the classic emulator. TestUncounted has what the example does differently on the latter.
func TestGoogle(t *testing.T) {
	if testing.Short() {
		t.Skip("left out: -short leaves Google's emulators out")
	}
	for _, name := range []string{"google", "firestore"} {
		t.Run(name, func(t *testing.T) {
			if name == "google" {
				nightly.Leave(t)
			}
			t.Parallel()
			_, err := comments(t, "-datastore", name, "-comments", "60", "-databases", "1", "-writers", "2", "-things",
				"20")
			if errors.Is(err, google.ErrNotInstalled) {
				t.Skipf("left out: %v", err)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestSameCaller runs the same caller with a plain kind in Datastore, and with the store. The
// results must be the same.
func TestSameCaller(t *testing.T) {
	first := testflag.Seed(t)
	for i, databases := range []int{1, 2, 4} {
		n, err := compare(t.Context(), plainClient(t), newStore(t, databases), first+uint64(i), 150, true)
		if err != nil || n < 50 {
			t.Errorf("%d databases, seed %d: %d notes, %v", databases, first+uint64(i), n, err)
		}
	}
	// The comparison must find a difference.
	client, s := plainClient(t), newStore(t, 1)
	if _, err := client.Put(t.Context(), plain(0), &Comment{Order: 7, Status: "paid", Text: "of another",
		Created: someTime}); err != nil {
		t.Fatal(err)
	}
	if _, err := compare(t.Context(), client, s, first, 100, true); err == nil ||
		!strings.Contains(err.Error(), "something else") {
		t.Errorf("a comment is only in the plain kind, and the comparison did not fail: %v", err)
	}
}

var someTime = time.Date(2024, 1, 2, 3, 4, 5, 6000, time.UTC)

// TestShards checks the rule that determines the shard of an order.
func TestShards(t *testing.T) {
	for order, want := range map[int64]int{0: 0, 299_999: 0, 300_000: 1, 5_999_999: 19, 6_000_000: 0} {
		if got := shardOf(order, 20); got != want {
			t.Errorf("order %d is in shard %d of 20, want %d", order, got, want)
		}
	}
	for databases, shards := range map[int]int{0: 20, 3: 20, 9: 18, 1: 129, 2: 0} {
		open := make([]Open, databases)
		if _, err := OpenStore(t.Context(), shards, open...); err == nil {
			t.Errorf("%d shards in %d databases", shards, databases)
		}
	}
}

// TestLayout opens databases with other numbers of shards or databases than they have. These stores
// must be refused. A store that was opened before the comments were moved must go on working.
func TestLayout(t *testing.T) {
	a, b := opener(t, emulator.ForTest(t, nil)), opener(t, emulator.ForTest(t, nil))
	try := func(shards int, open ...Open) error {
		s, err := OpenStore(t.Context(), shards, open...)
		if err == nil {
			s.Close()
		}
		return err
	}
	s := openStore(t, a, b)
	key, err := s.Put(t.Context(), plain(0), &Comment{Order: 25 * ordersAShard})
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"opened with 32 logical shards, and the comments of database 0 are in 20":                    try(32, a, b),
		"with 1 databases, of which this is number 0, and its comments say that it is number 1 of 2": try(20, b),
		"with 2 databases, of which this is number 0, and its comments say that it is number 1":      try(20, b, a),
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	empty := opener(t, emulator.ForTest(t, nil))
	if err := try(32, empty, b); err == nil {
		t.Error("the second of two databases has 20 shards, and the store is opened with 32")
	}
	// stores that were refused must have changed nothing
	if err := errors.Join(try(20, a, b), try(10, empty)); err != nil {
		t.Error(err)
	}
	if _, err := begin(t.Context(), s.router.databases[1].client, 32); err != nil {
		t.Fatal(err)
	}
	if err := agree(t.Context(), s.router.databases[1], 32, 2, true); err != nil {
		t.Errorf("comments are on their way into 32: %v", err)
	}
	if err := s.Get(t.Context(), key, new(Comment)); err != nil {
		t.Error(err)
	}
	// If the layout of a database is missing, the database must not be treated as empty.
	if err := s.router.databases[1].client.Delete(t.Context(), layoutKey); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), plain(0), &Comment{Order: ordersAShard}); status.Code(err) !=
		codes.FailedPrecondition || !strings.Contains(err.Error(), "has lost its layout") {
		t.Errorf("a write without a layout: %v", err)
	}
}

func TestFlags(t *testing.T) {
	for args, want := range map[string]string{
		"-comments -1":     "-comments",
		"-databases 9":     "-databases",
		"-from 21":         "-from 21",
		"-to 129":          "-to",
		"-from 32":         "both 32",
		"-things -1":       "-things",
		"-datastore cloud": `-datastore is "cloud"`,
		"more":             `"more"`,
	} {
		if _, err := parse(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error with %q", args, err, want)
		}
	}
	if c, err := parse(strings.Fields("-indexes -from 20 -to 20"), io.Discard); err != nil ||
		!bytes.Equal(indexYAML(c.from, c.to), indexYAML(20)) {
		t.Errorf("the indexes of 20 shards alone: %v", err)
	}
}

// TestDerivation checks the derived numbers. It also checks that an order that is active for longer
// than a turn has comments in more shards.
func TestDerivation(t *testing.T) {
	d, err := derive()
	if err != nil {
		t.Fatal(err)
	}
	if d.Days != 9 || d.Turn != 9*day || d.Round != 180*day || d.MostRows != 2 || d.Shortest != 300_000 ||
		d.Longest != 300_000 || d.Crossing < 0.32 ||
		d.Crossing > 0.34 {
		t.Errorf("%+v, want turns of 9 days, rounds of 180, at most 2 shards, of a third of the orders, and 300,000 "+
			"orders a turn", d)
	}
	for life, want := range map[time.Duration]int{time.Hour: 2, 9 * day: 2, 10 * day: 3, 27 * day: 4} {
		if got := mostShards(d.Turn, life); got != want {
			t.Errorf("an order that lives for %v is in up to %d shards, want %d", life, got, want)
		}
	}
}
