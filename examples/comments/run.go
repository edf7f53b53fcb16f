package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"

	"cloud.google.com/go/datastore"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/examples/internal/cloud"
	"github.com/scattermap/scattermap/mapper"
)

// runProgram runs the whole example. First it runs the same caller with a plain kind and with the
// store. Then it writes comments, moves them while clients use them, and checks them.
func runProgram(ctx context.Context, c config, stdout io.Writer) error {
	r := result{Databases: c.databases, From: c.from, To: c.to}
	var err error
	if r.Derivation, err = derive(); err != nil {
		return err
	}
	var clouds []*cloud.Cloud
	var clients []*datastore.Client
	var open []Open
	for i := range c.databases {
		on, err := cloud.Start(ctx, cloud.Options{Datastore: c.Datastore, Database: fmt.Sprintf("comments-%d", i),
			Workers: c.Workers,
			Mappers: []mapper.AnyMapper{reshard, count}, Indexes: indexYAML(c.from, c.to)})
		if err != nil {
			return err
		}
		defer on.Close()
		clouds, clients = append(clouds, on), append(clients, on.Client)
		open = append(open, func(opts ...option.ClientOption) (*datastore.Client,
			error) {
			return on.NewClient(ctx, opts...)
		})
	}
	s, err := OpenStore(ctx, c.from, open...)
	if err != nil {
		return err
	}
	defer func() { _ = s.Close() }()
	if r.Notes, err = compare(ctx, clouds[0].Client, s, rand.Uint64(), c.things, c.Datastore != "google"); err != nil {
		return err
	}
	l := newLoad(s)
	l.blind = c.Datastore == "google"
	if err := l.fill(ctx, c.comments); err != nil {
		return fmt.Errorf("write the comments: %w", err)
	}
	moved := make(chan struct{})
	group, loading := errgroup.WithContext(ctx)
	for range c.writers {
		group.Go(func() error { return l.work(loading, moved) })
	}
	group.Go(func() error {
		defer close(moved)
		moves, ctx := errgroup.WithContext(loading)
		for _, on := range clouds {
			moves.Go(func() error { return s.Reshard(ctx, on.Engine, c.to) })
		}
		return moves.Wait()
	})
	if err := group.Wait(); err != nil {
		return err
	}
	r.Inserted, r.Edited, r.Deleted, r.Read = l.inserted, l.edited, l.removed, l.read
	if r.Comments, err = l.check(ctx); err != nil {
		return err
	}
	for i, client := range clients {
		if err := r.look(ctx, client, clouds[i].Engine); err != nil {
			return err
		}
	}
	return r.print(stdout, c.JSON)
}

// compare runs the same caller with a plain kind and with the store, and checks that both have the
// same results. It returns the number of results, and deletes the caller's comments.
func compare(ctx context.Context, client *datastore.Client, s *Store, seed uint64, things int,
	counts bool) (int, error) {
	of := make(map[bool][]string)
	for _, routed := range []bool{false, true} {
		verbs := Verbs(client)
		if routed {
			verbs = s
		}
		notes, err := diary(ctx, verbs, seed, things, counts)
		if err != nil {
			return 0, fmt.Errorf("a caller (seed %d) of the plain kind or the store (%v): %w", seed, routed, err)
		}
		of[routed] = notes
		keys, err := verbs.GetAll(ctx, datastore.NewQuery(plainKind).KeysOnly(), nil)
		if err == nil {
			err = verbs.DeleteMulti(ctx, keys)
		}
		if err != nil {
			return 0, err
		}
	}
	for i := range max(len(of[false]), len(of[true])) {
		if i >= len(of[false]) || i >= len(of[true]) || of[false][i] != of[true][i] {
			return 0, fmt.Errorf("a caller (seed %d) gets something else from the store at note %d of %d and %d:\n"+
				"plain: "+
				"%q\nstore: %q", seed, i,
				len(of[false]), len(of[true]), of[false][min(i, len(of[false])):][:1],
				of[true][min(i, len(of[true])):][:1])
		}
	}
	return len(of[true]), nil
}

// look counts the comments in each shard of a database, and in a job over all shards.
func (r *result) look(ctx context.Context, client *datastore.Client, e *mapper.Engine) error {
	sum := int64(0)
	for _, shards := range []int{r.From, r.To} {
		for _, kind := range kindsOf(shards) {
			keys, err := client.GetAll(ctx, datastore.NewQuery(kind).KeysOnly(), nil)
			if err != nil {
				return err
			}
			if shards == r.From && len(keys) > 0 {
				return fmt.Errorf("%d comments are left in %s", len(keys), kind)
			}
			r.Largest = max(r.Largest, int64(len(keys)))
			sum += int64(len(keys))
		}
	}
	job, err := count.Start(ctx, e, mapper.Query{Kinds: kindsOf(r.To)}, mapper.NoParams{},
		&mapper.StartOptions{AllowEmpty: true})
	if err != nil {
		return err
	}
	status, err := job.Wait(ctx)
	if err == nil {
		err = status.Err()
	}
	if err != nil {
		return err
	}
	if status.Counters["comments"] != sum {
		return fmt.Errorf("job %s counts %d comments, want %d", job.ID, status.Counters["comments"], sum)
	}
	r.MostEdits = max(r.MostEdits, status.Counters["max(edits)"])
	return nil
}

// A load is a number of clients that insert, edit, delete and read comments, and a record of what
// they have done.
type load struct {
	store *Store

	mu sync.Mutex
	// orders has the number of edits of each inserted comment, by order and ID.
	orders                          map[int64]map[ID]int64
	busy                            map[ID]bool // comments that a client is editing or deleting
	gone                            map[ID]bool // comments that a client has deleted
	inserted, edited, removed, read int64
	refused                         func(error) bool // reports whether an error is acceptable; nil: none is
	// blind says that clients neither read nor edit, because Google's classic emulator has no
	// snapshots.
	blind bool
}

func newLoad(s *Store) *load {
	return &load{store: s, orders: make(map[int64]map[ID]int64), busy: make(map[ID]bool), gone: make(map[ID]bool)}
}

// someOrder returns the number of an order for the n-th comment. The comments are spread over many
// shards, with a few orders in each.
func someOrder(n int) int64 { return int64(n)*ordersAShard/4 + int64(n%3) }

// fill writes n comments.
func (l *load) fill(ctx context.Context, n int) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range n {
		group.Go(func() error { return l.insert(ctx, someOrder(i%400)) })
	}
	err := group.Wait()
	l.inserted = 0
	return err
}

// work inserts, edits, deletes and reads comments, until the channel moved is closed.
func (l *load) work(ctx context.Context, moved <-chan struct{}) error {
	for {
		select {
		case <-moved:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		default:
		}
		order := someOrder(rand.IntN(400))
		var err error
		switch what := rand.IntN(8); {
		case what < 1:
			err = l.remove(ctx, order)
		case what < 3 || l.blind:
			err = l.insert(ctx, order)
		case what < 5:
			err = l.edit(ctx, order)
		default:
			err = l.readOrder(ctx, order)
		}
		if err != nil && (l.refused == nil || !l.refused(err)) {
			return err
		}
	}
}

func (l *load) insert(ctx context.Context, order int64) error {
	key, err := l.store.Put(ctx, plain(0), &Comment{Order: order, Status: "sent", Author: "ann", Text: "well done"})
	if err != nil {
		return err
	}
	id := ID(key.ID)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.orders[order] == nil {
		l.orders[order] = make(map[ID]int64)
	}
	if _, there := l.orders[order][id]; there {
		return fmt.Errorf("two comments of order %d have the ID %d", order, id)
	}
	l.orders[order][id] = 0
	l.inserted++
	return nil
}

// choose returns a comment of an order that no client is editing or deleting. It returns false if
// there is none.
func (l *load) choose(order int64) (ID, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for id := range l.orders[order] {
		if !l.busy[id] {
			l.busy[id] = true
			return id, true
		}
	}
	return 0, false
}

// recentEdits is the number of tokens of its last edits that a comment stores.
const recentEdits = 32

// edit edits a random comment of an order, by its ID. The edit stores a token in the comment. If
// the answer gets lost, the token shows whether the edit took effect.
func (l *load) edit(ctx context.Context, order int64) error {
	id, ok := l.choose(order)
	if !ok {
		return nil
	}
	token := strconv.FormatUint(rand.Uint64(), 36)
	var err error
	for attempt := range tries {
		_, err = l.store.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
			c := new(Comment)
			if err := tx.Get(plain(id), c); err != nil || slices.Contains(c.Edited, token) {
				return err
			}
			c.Text, c.Edited = fmt.Sprint("very well done ", rand.IntN(100)),
				append(c.Edited[max(0, len(c.Edited)-recentEdits+1):], token)
			c.Edits++
			_, err := tx.Put(plain(id), c)
			return err
		})
		if err == nil || !again(err) {
			break
		}
		if err := pause(ctx, attempt); err != nil {
			return err
		}
	}
	if err != nil { // the outcome is unknown
		return fmt.Errorf("edit comment %d of order %d: %w", id, order, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.orders[order][id]++
	l.edited++
	delete(l.busy, id)
	return nil
}

// again reports whether to retry a call or a transaction that has failed with an error: its outcome
// is unknown, or the error is temporary.
func again(err error) bool {
	return lost(err) || expired(err) || errors.Is(err, datastore.ErrConcurrentTransaction) ||
		status.Code(err) == codes.Aborted
}

// remove deletes a comment of an order.
func (l *load) remove(ctx context.Context, order int64) error {
	id, ok := l.choose(order)
	if !ok {
		return nil
	}
	l.mu.Lock()
	edits := l.orders[order][id]
	delete(l.orders[order], id) // from now on the comment may be deleted
	l.mu.Unlock()
	err := l.store.Delete(ctx, plain(id))
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.orders[order][id] = edits
		return fmt.Errorf("delete comment %d of order %d: %w", id, order, err)
	}
	l.gone[id] = true
	l.removed++
	return nil
}

// readOrder reads the comments of an order, by the order and by their IDs. It checks that all
// comments from before the read are found, each once, and that deleted ones are not.
func (l *load) readOrder(ctx context.Context, order int64) error {
	var before, keys []*datastore.Key
	gone := make(map[ID]bool)
	l.mu.Lock()
	for id := range l.orders[order] {
		if !l.busy[id] {
			before = append(before, plain(id))
		}
	}
	for id := range l.gone {
		gone[id] = true
	}
	l.mu.Unlock()
	var all []Comment
	if _, err := l.store.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("Order", "=", order), &all); err != nil {
		return err
	}
	seen := make(map[ID]bool, len(all))
	for _, c := range all {
		if seen[c.ID()] || c.Order != order || gone[c.ID()] {
			return fmt.Errorf("comment %d of order %d is read twice, as one of order %d, or after it was deleted",
				c.ID(),
				c.Order, order)
		}
		seen[c.ID()] = true
	}
	read := make([]Comment, len(before))
	err := l.store.GetMulti(ctx, before, read)
	var missing datastore.MultiError
	if err != nil && !errors.As(err, &missing) {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, key := range before {
		if _, expected := l.orders[order][ID(key.ID)]; !expected {
			continue // a client is deleting it
		}
		keys = append(keys, key)
		if !seen[ID(key.ID)] || missing != nil && missing[i] != nil || missing == nil && read[i].Order != order {
			return fmt.Errorf("comment %d of order %d was there, and is not read", key.ID, order)
		}
	}
	l.read += int64(min(1, len(keys)))
	return nil
}

// errDiffers says that the stored comments differ from the ones that the clients have written.
var errDiffers = errors.New("the comments are not those that were written")

// checkOrder compares the stored comments of an order with the record of what the clients have
// written. It returns their number.
func (l *load) checkOrder(ctx context.Context, order int64) (n int64, err error) {
	var all []Comment
	if _, err := l.store.GetAll(ctx, datastore.NewQuery(plainKind).FilterField("Order", "=", order), &all); err != nil {
		return 0, err
	}
	want, there := l.orders[order], make(map[ID]Comment)
	for _, c := range all {
		there[c.ID()] = c
		if _, ours := want[c.ID()]; !ours {
			return 0, fmt.Errorf("%w: nobody has written comment %d of order %d", errDiffers, c.ID(), order)
		}
	}
	for id, edits := range want {
		c, ok := there[id]
		if l.busy[id] && (!ok || c.Edits != edits) {
			continue // a client gave up while it edited or deleted this comment, so its state is unknown
		}
		if !ok || c.Edits != edits {
			return 0, fmt.Errorf("%w: comment %d of order %d is there: %v, with %d edits, want %d", errDiffers, id,
				order, ok, c.Edits, edits)
		}
	}
	return int64(len(all)), nil
}

// check reads all comments, order by order and in one query, and compares them with the record of
// what the clients have written.
func (l *load) check(ctx context.Context) (n int64, err error) {
	for order := range l.orders {
		in, err := l.checkOrder(ctx, order)
		if err != nil {
			return 0, err
		}
		n += in
	}
	listed, last := int64(0), (*Comment)(nil)
	for it := l.store.Run(ctx, datastore.NewQuery(plainKind).Order("Created")); ; {
		c := new(Comment)
		_, err := it.Next(c)
		if errors.Is(err, iterator.Done) {
			break
		}
		if err != nil {
			return 0, err
		}
		if _, there := l.orders[c.Order][c.ID()]; !there || last != nil && !last.Created.Before(c.Created) &&
			last.ID() >= c.ID() {
			return 0, fmt.Errorf("%w: %d of order %d comes in the list after %d", errDiffers, c.ID(), c.Order,
				last.ID())
		}
		last = c
		listed++
	}
	if count, err := l.store.Count(ctx, datastore.NewQuery(plainKind)); err != nil || listed != n || int64(count) != n {
		return 0, fmt.Errorf("%w: the list has %d, and the count is %d, %w; want %d", errDiffers, listed, count, err, n)
	}
	return n, nil
}
