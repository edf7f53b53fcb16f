data "google_project" "this" {
  project_id = var.project

  depends_on = [terraform_data.enabled]
}

locals {
  # Cloud Run makes the URL from the service's name, so it is known before the service exists.
  url = "https://${var.name}-${data.google_project.this.number}.${var.region}.run.app"

  # The service's environment, see examples/cloudrun/config.go. Empty variables are left out.
  environment = {
    GOOGLE_CLOUD_PROJECT        = var.project
    DATASTORE_PROJECT           = var.database_project
    DATASTORE_DATABASE          = var.database
    TASKS_QUEUE                 = join(",", [for q in var.queues : google_cloud_tasks_queue.queues[q].id]) # the first is the default
    SERVICE_URL                 = local.url
    AUTH                        = var.auth
    TASKS_SERVICE_ACCOUNT       = google_service_account.tasks.email
    OPERATORS                   = var.auth == "on" ? join(",", concat(var.operators, google_service_account.team[*].email)) : ""
    IAP_AUDIENCE                = var.iap_audience
    MAX_INSTANCES               = tostring(var.instances)
    CONCURRENCY                 = tostring(var.concurrency)
    REQUEST_TIMEOUT             = tostring(local.timeout)
    OTEL_EXPORTER_OTLP_ENDPOINT = var.collector ? "http://localhost:4318" : ""
    OTEL_SERVICE_NAME           = var.collector ? var.name : "" # the label job of its metrics, which alarms and charts select
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
      max_instance_count = var.instances
    }

    # The service does not wait for the collector, which may never become ready.
    containers {
      name  = "service"
      image = var.image

      ports {
        container_port = 8080
      }

      resources {
        limits = {
          cpu    = var.cpu
          memory = var.memory
        }
        # Without a collector, the service works only during requests. The collector sends in the background, so it
        # needs CPU always.
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

      # Terraform's state has only the names of secrets.
      dynamic "env" {
        for_each = var.secrets
        content {
          name = env.key
          value_source {
            secret_key_ref {
              secret  = env.value
              version = "latest"
            }
          }
        }
      }

      # Cloud Run's longest startup, 240 s: /ready needs the database, and a new role may need minutes to take effect.
      startup_probe {
        timeout_seconds   = 2
        period_seconds    = 3
        failure_threshold = 80
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

    # The collector has no startup probe: Cloud Run ends an instance whose sidecar fails its probe.
    dynamic "containers" {
      for_each = var.collector ? [1] : []
      content {
        name  = "collector"
        image = var.collector_image
        args  = ["--config=env:COLLECTOR_CONFIG"]

        env {
          name  = "COLLECTOR_CONFIG"
          value = file("${path.module}/collector.yaml") # it has no secret
        }

        resources {
          limits = {
            cpu    = "0.5"
            memory = "256Mi"
          }
        }
      }
    }
  }

  lifecycle {
    precondition {
      condition     = var.auth == "iam" || length(var.operator_groups) == 0
      error_message = "operator_groups need auth = \"iam\": a token does not list the groups of its account."
    }
    precondition {
      condition     = var.auth == "on" || var.iap_audience == ""
      error_message = "iap_audience needs auth = \"on\": the service verifies the proxy's assertions."
    }
    precondition {
      condition     = length(var.operators) + length(var.operator_groups) > 0 || var.iap_audience != ""
      error_message = "operators is empty, so nobody could start a job: set operators, operator_groups or iap_audience."
    }
    precondition {
      condition     = local.for_tasks >= length(var.queues)
      error_message = "instances times concurrency is too small: each queue delivers at least one task, and operators need a tenth. Raise one of them, or use fewer queues."
    }
    precondition {
      condition     = var.budget == 0 || var.billing_account != ""
      error_message = "budget needs billing_account: set it, or set budget to 0."
    }
  }

  depends_on = [terraform_data.enabled, google_project_iam_member.service, google_cloud_tasks_queue_iam_member.viewer]
}
