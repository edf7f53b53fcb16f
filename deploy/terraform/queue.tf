locals {
  # Operators keep a tenth of the requests that the service takes at once, and at least one: otherwise a pause may be
  # answered 429 just when it is needed. tasks.Queue.CheckSettings has the same rule.
  at_once   = var.instances * var.concurrency
  for_tasks = max(1, local.at_once - max(1, ceil(local.at_once / 10)))
}

resource "google_cloud_tasks_queue" "queues" {
  for_each = toset(var.queues)

  project  = var.project
  location = var.region
  name     = each.value

  rate_limits {
    max_concurrent_dispatches = max(1, min(5000, floor(local.for_tasks / length(var.queues))))
    max_dispatches_per_second = 500
  }

  retry_config {
    max_attempts = -1       # never drop a task
    min_backoff  = "0.100s" # the API's spelling: with another, each apply would change it
    max_backoff  = "60s"    # the longest wait of a task that failed several times
  }

  depends_on = [terraform_data.enabled]
}
