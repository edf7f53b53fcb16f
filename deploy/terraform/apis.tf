# The APIs that the module needs. Everything that calls one of them comes after terraform_data.enabled.

locals {
  apis = concat(
    [
      "cloudresourcemanager.googleapis.com", # the project's number and its roles
      "cloudscheduler.googleapis.com",
      "cloudtasks.googleapis.com",
      "datastore.googleapis.com", # what the service reads and writes by
      "firestore.googleapis.com", # databases, and the policies that let records expire
      "iam.googleapis.com",
      "logging.googleapis.com",
      "monitoring.googleapis.com",
      "run.googleapis.com",
    ],
    var.collector ? ["cloudtrace.googleapis.com"] : [],
    local.impersonated ? ["iamcredentials.googleapis.com"] : [],
    var.budget > 0 ? ["billingbudgets.googleapis.com"] : [],
  )
}

resource "google_project_service" "apis" {
  for_each = toset(local.apis)

  project            = var.project
  service            = each.value
  disable_on_destroy = false # others in the project may need it
}

# An API that is new to a project answers 403 for a moment after it is enabled ("wait a few minutes for the action to
# propagate"). The wait needs no other provider; it takes place once, and again when an API is added.
resource "terraform_data" "enabled" {
  triggers_replace = local.apis

  provisioner "local-exec" {
    command = "sleep 60 || ping -n 61 127.0.0.1" # the second one is for Windows
  }

  depends_on = [google_project_service.apis]
}
