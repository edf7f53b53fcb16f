// Package tasksemu serves google.cloud.tasks.v2, with queues in memory, and delivers their tasks
// over HTTP.
//
// A [Server] has queues. A queue has its waiting tasks in the order of their times, and one
// dispatcher. The dispatcher takes the next due task when the queue's rate and concurrency allow,
// and delivers it in a new goroutine. After a failed delivery a task waits for its retry. After a
// success, or after its last attempt, the task is removed, and its name stays taken for a day.
//
// The functions that decide when and how a task is delivered need no locks and no clock. They use
// the settings of a queue (config.go, target.go, retry.go) and its throttle (throttle.go). One lock
// guards the set of queues, and each queue has a lock of its own. They are locked in that order.
//
// Where the documentation leaves a choice open, a comment at the code says what is done here. Calls
// that the server can't answer get UNIMPLEMENTED.
package tasksemu
