package executor

import (
	"context"
	"fmt"

	"github.com/scattermap/scattermap/mapper/internal/gate"
	"github.com/scattermap/scattermap/mapper/internal/record"
)

// enter takes a place in the gate, which decides which tasks run at the same time in this process.
// If exclusive is set, no other task runs while the delivery has the place. If the job has stopped
// during the wait, enter returns stopped.
func (d *delivery) enter(ctx context.Context, exclusive bool) (standing, error) {
	waited := false
	if d.place.Leave == nil || exclusive && !d.place.Exclusive {
		d.leave()
		var err error
		if d.place, err = d.x.Gate.Enter(ctx, exclusive); err != nil {
			return ours, fmt.Errorf("wait for other tasks: %w", err)
		}
		waited = d.place.Waited
	}
	if waited || d.state.begun {
		job, err := d.x.Store.LoadJob(ctx, d.job.Ref())
		if err != nil {
			return ours, err
		}
		if job.State != record.Running {
			return stopped, nil
		}
	}
	return ours, nil
}

// leave gives up the delivery's place in the gate, if it has one.
func (d *delivery) leave() {
	if d.place.Leave != nil {
		d.place.Leave()
	}
	d.place = gate.Place{}
}
