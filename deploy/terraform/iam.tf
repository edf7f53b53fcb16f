# The service's own account.
resource "google_service_account" "service" {
  project      = var.project
  account_id   = "${var.name}-service"
  display_name = "The service ${var.name}"

  depends_on = [terraform_data.enabled]
}

# The account whose tokens tasks and the schedule carry. It may call the service, and nothing else.
resource "google_service_account" "tasks" {
  project      = var.project
  account_id   = "${var.name}-tasks"
  display_name = "Tasks of ${var.name}"

  depends_on = [terraform_data.enabled]
}

locals {
  # The roles of the service, each with its project.
  roles = merge(
    { "roles/datastore.user" = local.database_project },
    var.collector ? { "roles/monitoring.metricWriter" = var.project, "roles/cloudtrace.agent" = var.project } : {},
  )
}

resource "google_project_iam_member" "service" {
  for_each = local.roles

  project = each.value
  role    = each.key
  member  = google_service_account.service.member
}

# The service enqueues tasks, finds lost tasks, and reads its queues' limits.
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

# The service gives its tasks tokens of the tasks' account.
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

# With auth = "iam", operators have to pass Cloud Run's check.
resource "google_cloud_run_v2_service_iam_member" "operators" {
  for_each = var.auth == "iam" ? local.members : {}

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.service.name
  role     = "roles/run.invoker"
  member   = each.value
}

# People open the dashboard by "gcloud run services proxy", which needs this role.
resource "google_cloud_run_v2_service_iam_member" "viewers" {
  for_each = var.auth == "iam" ? local.members : {}

  project  = var.project
  location = var.region
  name     = google_cloud_run_v2_service.service.name
  role     = "roles/run.viewer"
  member   = each.value
}

locals {
  members = merge(
    { for o in var.operators : o => endswith(o, "gserviceaccount.com") ? "serviceAccount:${o}" : "user:${o}" },
    { for g in var.operator_groups : g => "group:${g}" },
  )

  # gcloud makes no token of a person for the service's URL. With auth = "on", people impersonate an account that gets
  # such tokens.
  people       = [for o in var.operators : o if !endswith(o, "gserviceaccount.com")]
  impersonated = var.auth == "on" && var.iap_audience == "" && length(local.people) > 0

  login = (
    var.iap_audience != "" ? "" :
    local.impersonated ? "scattermap login ${local.url} --impersonate ${google_service_account.team[0].email}" :
    var.auth == "on" ? "scattermap login ${local.url} --impersonate ${concat(var.operators, ["ACCOUNT"])[0]}" :
    "scattermap login ${local.url}"
  )
}

resource "google_service_account" "team" {
  count = local.impersonated ? 1 : 0

  project      = var.project
  account_id   = "${var.name}-team"
  display_name = "Operators of ${var.name}"

  depends_on = [terraform_data.enabled]
}

resource "google_service_account_iam_member" "impersonate" {
  for_each = local.impersonated ? toset(local.people) : toset([])

  service_account_id = google_service_account.team[0].name
  role               = "roles/iam.serviceAccountTokenCreator"
  member             = "user:${each.value}"
}
