# Each alarm links to its section of docs/operate.md. TestAlarms evaluates each query on series of two instances and two
# revisions.

locals {
  # Labels of the service's series, and of its queues' series.
  own_series   = "job=\"${var.name}\""
  queue_series = "monitored_resource=\"cloud_tasks_queue\",queue_id=~\"${join("|", var.queues)}\""

  # These alarms need the service's own metrics, which the collector sends.
  own_alarms = {
    a-job-runs-and-commits-nothing = {
      title = "A job runs and commits nothing"
      text  = "A running job has committed no page for ${var.idle_minutes} minutes, or tasks are delivered and no instance sends metrics."
      query = join(" or ", [
        "max by (scattermap_mapper) (scattermap_job_idle_seconds{${local.own_series}}) > ${var.idle_minutes * 60}",
        "(absent_over_time(scattermap_tasks_in_flight{${local.own_series}}[10m]) and on() (sum(increase(cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_series}}[10m])) > 0))",
      ])
      duration = "300s"
    }
    many-entities-fail = {
      title = "Many entities fail"
      text  = "More than ${var.failure_share * 100}% of a mapper's entities failed within 15 minutes."
      query = join(" ", [
        "sum by (scattermap_mapper) (rate(scattermap_failures_total{${local.own_series}}[15m]))",
        "/ ((sum by (scattermap_mapper) (rate(scattermap_entities_total{${local.own_series}}[15m]))",
        "or 0 * sum by (scattermap_mapper) (rate(scattermap_failures_total{${local.own_series}}[15m])))",
        "+ sum by (scattermap_mapper) (rate(scattermap_failures_total{${local.own_series}}[15m]))) > ${var.failure_share}",
      ])
      duration = "60s"
    }
  }

  # These alarms need the metrics of Google's services only.
  platform_alarms = {
    tasks-wait-too-long = {
      title    = "Tasks wait too long"
      text     = "A tenth of the tasks waited more than ${var.task_age_minutes} minutes after they were due."
      query    = "histogram_quantile(0.9, sum by (le, queue_id) (rate(cloudtasks_googleapis_com:queue_task_attempt_delays_bucket{${local.queue_series}}[10m]))) > ${var.task_age_minutes * 60000}"
      duration = "300s"
    }

    # absent joins the revisions, and also finds a schedule that never worked. It has to last for two intervals, because
    # there are no calls yet after an apply.
    the-revive-schedule-is-absent = {
      title    = "The revive schedule is absent"
      text     = "No call of /mapper/revive has succeeded for a while. Jobs that lose all their tasks will not move."
      query    = "absent(increase(${local.revived}{monitored_resource=\"cloud_run_revision\",service_name=\"${var.name}\"}[${3 * var.revive_minutes + 5}m]) > 0)"
      duration = "${60 * (2 * var.revive_minutes + 5)}s"
    }
  }

  # These alarms need log lines only.
  log_alarms = {
    a-job-runs-and-commits-nothing = {
      title  = "Tasks are not delivered"
      text   = "The tasks of a job are not delivered. The log line says why."
      filter = "jsonPayload.event=\"tasks are not delivered\""
    }
    many-entities-fail = {
      title  = "A job has failed, or is paused by its limit"
      text   = "A job has failed, or its failure limit or budget has paused it."
      filter = "jsonPayload.event=(\"job failed\" OR \"job paused\") AND severity>=WARNING"
    }
  }

  # PromQL's name of the log metric below.
  revived = "logging_googleapis_com:user_${replace(var.name, "-", "_")}_revived"

  channels = concat([for c in google_monitoring_notification_channel.mail : c.name], var.notification_channels)
}

resource "google_monitoring_notification_channel" "mail" {
  for_each = toset(var.alarm_emails)

  project      = var.project
  display_name = "${var.name}: ${each.value}"
  type         = "email"

  labels = {
    email_address = each.value
  }

  depends_on = [terraform_data.enabled]
}

resource "google_monitoring_alert_policy" "metrics" {
  for_each = merge(var.collector ? local.own_alarms : {}, local.platform_alarms)

  project               = var.project
  display_name          = "${var.name}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = local.channels

  conditions {
    display_name = each.value.title

    condition_prometheus_query_language {
      query                     = each.value.query
      duration                  = each.value.duration
      evaluation_interval       = "60s"
      disable_metric_validation = true # the API would refuse a metric without data
    }
  }

  documentation {
    content   = "${each.value.text} What to do: ${var.playbook}#${each.key}"
    mime_type = "text/markdown"
  }
}

resource "google_monitoring_alert_policy" "logs" {
  for_each = local.log_alarms

  project               = var.project
  display_name          = "${var.name}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = local.channels

  conditions {
    display_name = each.value.title

    condition_matched_log {
      filter = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${var.name}\" AND ${each.value.filter}"
    }
  }

  alert_strategy {
    notification_rate_limit {
      period = "300s"
    }
  }

  documentation {
    content   = "${each.value.text} What to do: ${var.playbook}#${each.key}"
    mime_type = "text/markdown"
  }
}

# The schedule's successful calls. Only the schedule finds jobs whose sweeps are lost.
resource "google_logging_metric" "revived" {
  project     = var.project
  name        = "${var.name}/revived"
  description = "Successful calls of /mapper/revive."
  filter      = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${var.name}\" AND httpRequest.requestUrl=~\"/mapper/revive$\" AND httpRequest.status=200"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
  }

  depends_on = [terraform_data.enabled]
}
