package main

import (
	"context"
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
)

// A duty is the record of who may send orders: the old cron, which is one process, or the battery
// of processes that replaces it. Each of them gets a turn when it starts. Each commit compares the
// turn in its transaction. So a process that was replaced, or that stood still for days, commits
// nothing.
type duty struct {
	Turn      int64 // the number of the present turn; it increases whenever others take over
	Running   bool  // whether a run of the old cron is under way
	Retired   bool  // whether the old cron must not start any more
	Shards    int   // number of the battery's processes; the remainders of new orders are by this number
	Rewriting bool  // whether some stored remainders are still by an earlier number
}

var dutyKey = datastore.NameKey("Duty", "send-orders", nil)

var (
	errRetired   = errors.New("the old cron was retired: a battery works")
	errRunning   = errors.New("a run of the old cron is under way")
	errNotYet    = errors.New("the old cron may start again: retire it first")
	errRewriting = errors.New("the remainders are being rewritten")
	errRelieved  = errors.New("others have this work by now")
)

// changeDuty changes the duty's record by change, in a transaction. It returns an error if change
// does.
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

// startOld starts a run of the old cron, and returns its turn.
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

// endOld ends a run of the old cron.
func endOld(ctx context.Context, client *datastore.Client, turn int64) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		if d.Turn == turn {
			d.Running = false
		}
		return nil
	})
	return err
}

// retireOld makes the old cron start no further runs. A run under way continues.
func retireOld(ctx context.Context, client *datastore.Client) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		d.Retired = true
		return nil
	})
	return err
}

// relieveOld ends the turn of the old cron if a run of it has died, and so will not end. If the run
// was only stopped and wakes, it commits nothing.
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

// startBattery starts the turn of n processes, and ends the turn before. It returns an error while
// the old cron runs, or may start again. If stored is set, the processes filter by stored
// remainders, which must be by n.
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

// beginRewrite ends the turn of all processes, and makes new orders get their remainder by n.
func beginRewrite(ctx context.Context, client *datastore.Client, n int) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		d.Shards = n
		d.Rewriting = true
		d.Turn++
		return nil
	})
	return err
}

// endRewrite records that all remainders are by n shards.
func endRewrite(ctx context.Context, client *datastore.Client, n int) error {
	_, err := changeDuty(ctx, client, func(d *duty) error {
		if d.Shards == n {
			d.Rewriting = false
		}
		return nil
	})
	return err
}
