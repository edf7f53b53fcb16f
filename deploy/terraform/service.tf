data "google_project" "this" {
  project_id = var.project
}

locals {
  # The URL that Cloud Run gives a service by its name, so that the service knows it before it is there.
  url = "https://${var.name}-${data.google_project.this.number}.${var.region}.run.app"

  # What the service reads, see examples/cloudrun/config.go. What is empty is left out.
  environment = {
    GOOGLE_CLOUD_PROJECT        = var.project
    DATASTORE_DATABASE          = var.database
    TASKS_QUEUE                 = join(",", [for q in var.queues : google_cloud_tasks_queue.queues[q].id]) # the first one is the default
    SERVICE_URL                 = local.url
    AUTH                        = var.auth
    TASKS_SERVICE_ACCOUNT       = google_service_account.tasks.email
    OPERATORS                   = var.auth == "on" ? join(",", var.operators) : ""
    IAP_AUDIENCE                = var.iap_audience
    MAX_INSTANCES               = tostring(var.instances)
    CONCURRENCY                 = tostring(var.concurrency)
    REQUEST_TIMEOUT             = tostring(local.timeout)
    OTEL_EXPORTER_OTLP_ENDPOINT = var.collector ? "http://localhost:4318" : ""
  }

  # Seconds. A delivery may take up to 10 minutes, see tasks.Options.Deadline.
  timeout = 900
}

resource "google_cloud_run_v2_service" "service" {
  project              = var.project
  location             = var.region
  name                 = var.name
  ingress              = "INGRESS_TRAFFIC_ALL"
  deletion_protection  = false
  invoker_iam_disabled = var.auth == "on" # the service verifies every token itself

  template {
    service_account                  = google_service_account.service.email
    timeout                          = "${local.timeout}s"
    max_instance_request_concurrency = var.concurrency

    scaling {
      min_instance_count = 0
      max_instance_count = var.instances
    }

    containers {
      name       = "service"
      image      = var.image
      depends_on = var.collector ? ["collector"] : []

      ports {
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = var.cpu
          memory = var.memory
        }
        # CPU only while requests are under way: all that the service does is a request. With a collector beside it
        # there is always CPU, as that sends in the background.
        cpu_idle          = !var.collector
        startup_cpu_boost = true
      }

      dynamic "env" {
        for_each = { for name, value in local.environment : name => value if value != "" }
        content {
          name  = env.key
          value = env.value
        }
      }

      startup_probe {
        period_seconds    = 1
        failure_threshold = 30
        http_get {
          path = "/ready"
        }
      }

      liveness_probe {
        period_seconds    = 30
        failure_threshold = 3
        http_get {
          path = "/health"
        }
      }
    }

    dynamic "containers" {
      for_each = var.collector ? [1] : []
      content {
        name  = "collector"
        image = var.collector_image
        args  = ["--config=/etc/otelcol-google/config.yaml"]

        resources {
          limits = {
            cpu    = "0.5"
            memory = "256Mi"
          }
        }

        startup_probe {
          period_seconds    = 2
          failure_threshold = 15
          http_get {
            path = "/"
            port = 13133
          }
        }

        volume_mounts {
          name       = "collector"
          mount_path = "/etc/otelcol-google"
        }
      }
    }

    dynamic "volumes" {
      for_each = var.collector ? [1] : []
      content {
        name = "collector"
        secret {
          secret = google_secret_manager_secret.collector[0].secret_id
          items {
            version = "latest"
            path    = "config.yaml"
          }
        }
      }
    }
  }

  depends_on = [google_project_iam_member.service, google_secret_manager_secret_iam_member.collector, google_secret_manager_secret_version.collector]
}
