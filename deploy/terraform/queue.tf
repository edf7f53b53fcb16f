resource "google_cloud_tasks_queue" "queues" {
  for_each = toset(var.queues)

  project  = var.project
  location = var.region
  name     = each.value

  rate_limits {
    # As many as the service takes, shared by the queues: what is above would be answered 429, and slow the queue down.
    max_concurrent_dispatches = max(1, min(5000, floor(var.instances * var.concurrency / length(var.queues))))
    max_dispatches_per_second = 500
  }

  retry_config {
    max_attempts = -1 # a task is never given up
    min_backoff  = "0.1s"
    max_backoff  = "60s" # what a task waits whose process has died several times
  }
}
