// Package tasks names, builds, enqueues and receives tasks of Cloud Tasks.
//
// A [Queue] stands for one Cloud Tasks queue and the URL that its tasks are sent
// to. [Queue.Enqueue] creates a [Task] under an ID, which the queue takes only once:
// enqueueing the same task again does nothing. [Queue.Handler] is the other end:
// it checks that a request is a delivery of this queue, hands the [Delivery] to
// a function, and turns its error into an answer that has the queue retry the
// task or forget it. A task carries the name of the queue that it was put into.
//
// Deliveries carry an OIDC token of a service account, which the handler
// verifies, unless the deployer has switched that off. Cloud Tasks delivers at
// least once, in any order, and again while an earlier delivery may still run.
package tasks
