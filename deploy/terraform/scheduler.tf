# Revives jobs that lost all their tasks, and measures how long jobs have been stuck: see Engine.ReviveJobs.
resource "google_cloud_scheduler_job" "revive" {
  project          = var.project
  region           = var.region
  name             = "${var.name}-revive"
  description      = "Revives the jobs of ${var.name}"
  schedule         = var.revive_minutes == 60 ? "0 * * * *" : "*/${var.revive_minutes} * * * *"
  time_zone        = "Etc/UTC"
  attempt_deadline = "180s"

  retry_config {
    retry_count = 1
  }

  http_target {
    http_method = "POST"
    uri         = "${local.url}/mapper/revive"

    oidc_token {
      service_account_email = google_service_account.tasks.email
      audience              = local.url
    }
  }

  depends_on = [terraform_data.enabled, google_cloud_run_v2_service.service]
}
