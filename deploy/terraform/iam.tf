# The service's own account.
resource "google_service_account" "service" {
  project      = var.project
  account_id   = "${var.name}-service"
  display_name = "The service ${var.name}"
}

# The account whose tokens tasks and the schedule carry. It may call the service, and nothing else.
resource "google_service_account" "tasks" {
  project      = var.project
  account_id   = "${var.name}-tasks"
  display_name = "Tasks of ${var.name}"
}

locals {
  # The roles of the service in the project: the database can't be granted by itself.
  roles = concat(["roles/datastore.user"], var.collector ? ["roles/monitoring.metricWriter", "roles/cloudtrace.agent"] : [])
}

resource "google_project_iam_member" "service" {
  for_each = toset(local.roles)

  project = var.project
  role    = each.value
  member  = google_service_account.service.member
}

# It enqueues tasks, looks for those that are lost, and reads how many its queues deliver at once.
resource "google_cloud_tasks_queue_iam_member" "enqueuer" {
  for_each = google_cloud_tasks_queue.queues

  project  = var.project
  location = var.region
  name     = each.value.name
  role     = "roles/cloudtasks.enqueuer"
  member   = google_service_account.service.member
}

resource "google_cloud_tasks_queue_iam_member" "viewer" {
  for_each = google_cloud_tasks_queue.queues

  project  = var.project
  location = var.region
  name     = each.value.name
  role     = "roles/cloudtasks.viewer"
  member   = google_service_account.service.member
}

# It gives its tasks the tokens of the other account.
resource "google_service_account_iam_member" "act_as" {
  service_account_id = google_service_account.tasks.name
  role               = "roles/iam.serviceAccountUser"
  member             = google_service_account.service.member
}

resource "google_cloud_run_v2_service_iam_member" "tasks" {
  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.service.name
  role     = "roles/run.invoker"
  member   = google_service_account.tasks.member
}

# Where Cloud Run's own check stands in front of the service, operators need to pass it.
resource "google_cloud_run_v2_service_iam_member" "operators" {
  for_each = toset(var.auth == "iam" ? var.operators : [])

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.service.name
  role     = "roles/run.invoker"
  member   = endswith(each.value, "gserviceaccount.com") ? "serviceAccount:${each.value}" : "user:${each.value}"
}
