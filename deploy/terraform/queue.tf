locals {
  # A tenth of the requests that the service takes at once, and one at least, is for operators: what is above the
  # service's limit is answered 429, and a pause would come to be among it just when it is needed. tasks.Queue.CheckSettings
  # has the same rule.
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
    max_attempts = -1       # a task is never given up
    min_backoff  = "0.100s" # as the API answers it: written otherwise it would be changed with each apply
    max_backoff  = "60s"    # what a task waits whose process has died several times
  }

  depends_on = [terraform_data.enabled]
}
