// Package tasksemu is a google.cloud.tasks.v2 service that keeps its queues in
// memory and delivers their tasks over HTTP.
//
// A [Server] holds queues. A queue holds its waiting tasks in the order of
// their times, and runs one dispatcher: it takes the next task that is due when
// the queue's rate and concurrency allow, and delivers it in a goroutine of its
// own. A task whose delivery failed waits for its retry; one that succeeded or
// was given up leaves its name behind, which nobody can use again for a day.
//
// What decides has neither lock nor clock: the settings of a queue (config.go,
// target.go, retry.go) and its slowing down (throttle.go). What holds state is
// behind one lock for the set of queues and one for each queue, taken in that
// order.
//
// Where the documentation leaves a choice, the choice is in the comment of what
// makes it. Where the service has no answer, it says so: UNIMPLEMENTED.
package tasksemu
