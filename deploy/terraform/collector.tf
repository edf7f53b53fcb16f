# The collector's configuration, which the sidecar mounts.
resource "google_secret_manager_secret" "collector" {
  count = var.collector ? 1 : 0

  project   = var.project
  secret_id = "${var.name}-collector"

  replication {
    auto {}
  }
}

resource "google_secret_manager_secret_version" "collector" {
  count = var.collector ? 1 : 0

  secret      = google_secret_manager_secret.collector[0].id
  secret_data = file("${path.module}/collector.yaml")
}

resource "google_secret_manager_secret_iam_member" "collector" {
  count = var.collector ? 1 : 0

  project   = var.project
  secret_id = google_secret_manager_secret.collector[0].secret_id
  role      = "roles/secretmanager.secretAccessor"
  member    = google_service_account.service.member
}
