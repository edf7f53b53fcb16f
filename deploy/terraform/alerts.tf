# Each alarm links to its play in docs/operations.md.

locals {
  queue_filter = join("|", var.queues)

  # The alarms that need the service's own metrics, which the collector sends.
  own_alarms = {
    a-job-runs-and-commits-nothing = {
      title = "A job runs and commits nothing"
      text  = "A job has committed no page for ${var.idle_minutes} minutes, or nobody tells while tasks are delivered."
      query = join(" or ", [
        "max by (scattermap_mapper) (scattermap_job_idle_seconds) > ${var.idle_minutes * 60}",
        "(absent(scattermap_job_idle_seconds) and on() (sum(rate(cloudtasks_googleapis_com:queue_task_attempt_count{monitored_resource=\"cloud_tasks_queue\",queue_id=~\"${local.queue_filter}\"}[10m])) > 0))",
      ])
      duration = "300s"
    }
    many-entities-fail = {
      title    = "Many entities fail"
      text     = "More than ${var.failure_share * 100}% of the entities of a mapper have failed for good within 15 minutes."
      query    = "sum by (scattermap_mapper) (rate(scattermap_failures_total[15m])) / (sum by (scattermap_mapper) (rate(scattermap_entities_total[15m])) + sum by (scattermap_mapper) (rate(scattermap_failures_total[15m]))) > ${var.failure_share}"
      duration = "0s"
    }
  }

  # Those that need the metrics of Cloud Tasks only.
  queue_alarms = {
    tasks-wait-too-long = {
      title    = "Tasks wait too long"
      text     = "A tenth of the tasks have waited for more than ${var.task_age_minutes} minutes after they were due."
      query    = "histogram_quantile(0.9, sum by (le, queue_id) (rate(cloudtasks_googleapis_com:queue_task_attempt_delays_bucket{monitored_resource=\"cloud_tasks_queue\",queue_id=~\"${local.queue_filter}\"}[10m]))) > ${var.task_age_minutes * 60000}"
      duration = "300s"
    }
  }

  # Those that need lines of the log only, and stand for the first two where there is no collector.
  log_alarms = var.collector ? {} : {
    a-job-runs-and-commits-nothing = {
      title  = "Tasks are not delivered"
      text   = "The service says that the tasks of a job are not delivered, and why."
      filter = "jsonPayload.message=\"tasks are not delivered\""
    }
    many-entities-fail = {
      title  = "A job has failed, or is paused by its limit"
      text   = "A job has failed, or so many entities have that it is paused."
      filter = "jsonPayload.message=(\"job failed\" OR \"job paused\") AND severity>=WARNING"
    }
  }
}

resource "google_monitoring_alert_policy" "metrics" {
  for_each = merge(var.collector ? local.own_alarms : {}, local.queue_alarms)

  project               = var.project
  display_name          = "${var.name}: ${each.value.title}"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = each.value.title

    condition_prometheus_query_language {
      query               = each.value.query
      duration            = each.value.duration
      evaluation_interval = "60s"
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
  notification_channels = var.notification_channels

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

# How often the schedule was answered with success: nothing else tells of jobs whose sweeps are lost.
resource "google_logging_metric" "revived" {
  project     = var.project
  name        = "${var.name}/revived"
  description = "Calls of /mapper/revive that the service has answered with success."
  filter      = "resource.type=\"cloud_run_revision\" AND resource.labels.service_name=\"${var.name}\" AND httpRequest.requestUrl=~\"/mapper/revive$\" AND httpRequest.status=200"

  metric_descriptor {
    metric_kind = "DELTA"
    value_type  = "INT64"
  }
}

resource "google_monitoring_alert_policy" "revive" {
  project               = var.project
  display_name          = "${var.name}: The revive schedule is absent"
  combiner              = "OR"
  notification_channels = var.notification_channels

  conditions {
    display_name = "The revive schedule is absent"

    condition_absent {
      filter   = "resource.type=\"cloud_run_revision\" AND metric.type=\"logging.googleapis.com/user/${google_logging_metric.revived.name}\""
      duration = "${max(300, 3 * 60 * var.revive_minutes)}s"

      aggregations {
        alignment_period   = "300s"
        per_series_aligner = "ALIGN_DELTA"
      }
    }
  }

  documentation {
    content   = "No call of /mapper/revive has succeeded for a while: jobs that lose their tasks stay where they are. What to do: ${var.playbook}#the-revive-schedule-is-absent"
    mime_type = "text/markdown"
  }
}
