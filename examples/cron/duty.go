package main

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
)

// A duty is the record of who may send orders. This is either the old cron, a single process, or
// the battery, which is a number of processes that replace it. A sender gets a new turn, a number,
// when it starts. Each of its commits compares this number with the record. So a sender that was
// replaced commits nothing, even if it stood still for days.
type duty struct {
	Turn      int64 // the number of the present turn; it grows by 1 when another sender starts
	Running   bool  // whether a run of the old cron is under way
	Retired   bool  // whether the old cron must not start any more
	Shards    int   // number of processes in the battery; new orders store the remainder of their hash divided by it
	Rewriting bool  // whether some stored remainders are still for an earlier number of processes
}

var dutyKey = datastore.NameKey("Duty", "send-orders", nil)

var (
	errRetired   = errors.New("the old cron was retired: a battery works")
	errRunning   = errors.New("a run of the old cron is under way")
	errNotYet    = errors.New("the old cron may start again: retire it first")
	errRewriting = errors.New("the remainders are being rewritten")
	errRelieved  = errors.New("others have this work by now")
)

// changeDuty changes the record in a transaction, by the function change. If change returns an
// error, the record stays unchanged.
func changeDuty(ctx context.Context, client *datastore.Client, change func(*duty) error) (d duty, err error) {
	_, err = client.RunInTransaction(ctx, func(tx *datastore.Transaction) error {
		d = duty{}
		if err := tx.Get(dutyKey, &d); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		if err := change(&d); err != nil {
			return err
		}
		_, err := tx.Put(dutyKey, &d)
		return err
	}, datastore.MaxAttempts(50))
	return d, err
}

// startOld starts a turn for a run of the old cron, and returns the turn's number.
func startOld(ctx context.Context, client *datastore.Client) (int64, error) {
	d, err := changeDuty(ctx, client, func(d *duty) error {
		switch {
		case d.Retired:
			return errRetired
		case d.Running:
			return errRunning
		}
		d.Running = true
		d.Turn++
		return nil
	})
	return d.Turn, err
}

// endOld records that a run of the old cron has ended.
func endOld(ctx context.Context, client *datastore.Client, turn int64) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		if d.Turn == turn {
			d.Running = false
		}
		return nil
	})
	return err
}

// retireOld records that the old cron must not start another run. A run that has started may
// continue.
func retireOld(ctx context.Context, client *datastore.Client) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		d.Retired = true
		return nil
	})
	return err
}

// relieveOld ends the turn of the old cron. An operator calls it if a run has died, and so will not
// end. If the run only stood still, it commits nothing when it continues.
func relieveOld(ctx context.Context, client *datastore.Client) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		if !d.Retired {
			return errNotYet
		}
		d.Running = false
		d.Turn++
		return nil
	})
	return err
}

// startBattery starts a turn for a battery of n processes, and returns its number. It returns an
// error if the old cron runs, or is not retired. If stored is set, the processes select orders by
// stored remainders, which must be for n processes.
func startBattery(ctx context.Context, client *datastore.Client, n int, stored bool) (int64, error) {
	d, err := changeDuty(ctx, client, func(d *duty) error {
		switch {
		case !d.Retired:
			return errNotYet
		case d.Running:
			return errRunning
		case stored && d.Rewriting:
			return errRewriting
		case stored && d.Shards != 0 && d.Shards != n:
			return fmt.Errorf("the remainders are of %d shards: rewrite them for %d", d.Shards, n)
		case stored:
			d.Shards = n
		}
		d.Turn++
		return nil
	})
	return d.Turn, err
}

// beginRewrite prepares the job [rewrite], which changes the stored remainder of each order to its
// remainder for n processes. It ends the turn of the present sender, which can commit nothing
// more. From then on, new orders store the remainder for n processes.
func beginRewrite(ctx context.Context, client *datastore.Client, n int) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		d.Shards = n
		d.Rewriting = true
		d.Turn++
		return nil
	})
	return err
}

// endRewrite records that the stored remainders of all orders are now those for n processes.
func endRewrite(ctx context.Context, client *datastore.Client, n int) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		if d.Shards == n {
			d.Rewriting = false
		}
		return nil
	})
	return err
}
