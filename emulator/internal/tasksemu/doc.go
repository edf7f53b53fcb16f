// Package tasksemu is a google.cloud.tasks.v2 service that keeps its queues in
// memory and delivers their tasks over HTTP.
//
// A [Server] holds queues. A queue holds its waiting tasks in the order of
// their times, and runs one dispatcher: it takes the next task that is due when
// the queue's rate and concurrency allow, and delivers it in a goroutine of its
// own. A task whose delivery failed waits for its retry; one that succeeded or
// was given up leaves its name behind, which nobody can use again for a day.
package tasksemu
