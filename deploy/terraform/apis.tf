# The APIs that the module needs. Resources that call one of them depend on terraform_data.enabled.

locals {
  apis = concat(
    [
      "cloudresourcemanager.googleapis.com", # the project's number and its roles
      "cloudscheduler.googleapis.com",
      "cloudtasks.googleapis.com",
      "datastore.googleapis.com", # the service's reads and writes
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

# A newly enabled API may answer 403 for a moment ("wait a few minutes for the action to propagate"). This wait needs no
# other provider. It happens once, and again after an API is added.
resource "terraform_data" "enabled" {
  triggers_replace = local.apis

  provisioner "local-exec" {
    command = "sleep 60 || ping -n 61 127.0.0.1" # the second one is for Windows
  }

  depends_on = [google_project_service.apis]
}
