// Package tasks creates tasks in Cloud Tasks and receives their deliveries.
//
// A [Queue] is one Cloud Tasks queue together with the URL that its tasks are sent to.
// [Queue.Enqueue] creates a [Task] under an ID. The queue accepts an ID only once, so enqueueing a
// task again has no effect.
//
// [Queue.Handler] receives the deliveries. It checks that a request is a delivery of this queue and
// passes the [Delivery] to a function. The function's error decides whether the queue retries the
// task or forgets it. Cloud Tasks delivers at least once, in any order, and may deliver a task
// again while an earlier delivery still runs.
//
// Each delivery carries an OIDC token of a service account. The handler verifies the token, unless
// [Options] switch that off, for example for an emulator.
package tasks
