// Package tasksemu serves google.cloud.tasks.v2, with queues in memory, and delivers their tasks
// over HTTP.
//
// A [Server] has queues. A queue has a heap of waiting tasks, in the order of their times, and one
// dispatcher. The dispatcher takes the next due task when the queue's rate and concurrency allow.
// It delivers the task in a new goroutine. After a failed delivery, the task waits for its retry.
// After a success, or after its last attempt, the task is removed. Its name can't be used again for
// a day.
//
// The functions that decide when and how a task is delivered need no locks and no clock. They use a
// queue's settings (config.go, target.go, retry.go) and its throttle (throttle.go). One lock guards
// the set of queues, and each queue has a lock of its own. A goroutine that needs both locks the
// set first.
//
// Where the documentation leaves something open, a comment in the code says what this server does.
// Methods that the server does not support return UNIMPLEMENTED.
package tasksemu
