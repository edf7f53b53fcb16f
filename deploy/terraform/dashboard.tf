locals {
  # Charts of the service's own metrics need the collector. Metrics arrive once a minute, so a rate needs some minutes.
  charts = concat(
    var.collector ? [
      { title = "Entities a second, by mapper", query = "sum by (scattermap_mapper) (rate(scattermap_entities_total{${local.own_series}}[5m]))" },
      { title = "Seconds since a running job last committed a page", query = "max by (scattermap_mapper) (scattermap_job_idle_seconds{${local.own_series}})" },
      { title = "Failures a minute, by mapper", query = "sum by (scattermap_mapper) (60 * rate(scattermap_failures_total{${local.own_series}}[5m]))" },
      { title = "Conflicts and repeated deliveries a minute", query = "60 * ((sum(rate(scattermap_conflicts_total{${local.own_series}}[5m])) or vector(0)) + (sum(rate(scattermap_retries_total{${local.own_series}}[5m])) or vector(0)))" },
      { title = "Pages: seconds, 95th percentile", query = "histogram_quantile(0.95, sum by (le) (rate(scattermap_page_duration_seconds_bucket{${local.own_series}}[5m])))" },
      { title = "Pages a second", query = "sum(rate(scattermap_pages_total{${local.own_series}}[5m]))" },
      { title = "Tasks in flight", query = "sum(scattermap_tasks_in_flight{${local.own_series}})" },
      { title = "Ranges split off a minute, by reason", query = "sum by (scattermap_reason) (60 * rate(scattermap_splits_total{${local.own_series}}[5m]))" },
      { title = "Tasks that were due: seconds waited, 95th percentile", query = "histogram_quantile(0.95, sum by (le) (rate(scattermap_queue_wait_seconds_bucket{${local.own_series}}[5m])))" },
    ] : [],
    [
      { title = "Tasks in the queues", query = "sum by (queue_id) (cloudtasks_googleapis_com:queue_depth{${local.queue_series}})" },
      { title = "Deliveries a second, by answer", query = "sum by (response_code) (rate(cloudtasks_googleapis_com:queue_task_attempt_count{${local.queue_series}}[5m]))" },
      { title = "Instances of the service", query = "sum by (state) (run_googleapis_com:container_instance_count{monitored_resource=\"cloud_run_revision\",service_name=\"${var.name}\"})" },
    ],
  )
}

resource "google_monitoring_dashboard" "service" {
  project = var.project
  dashboard_json = jsonencode({
    displayName = var.name
    mosaicLayout = {
      columns = 12
      # Positions of 0 are left out, because the API leaves them out: otherwise each apply would change the dashboard.
      tiles = [for i, chart in local.charts : merge(
        { for name, at in { xPos = 6 * (i % 2), yPos = 4 * floor(i / 2) } : name => at if at != 0 },
        {
          width  = 6
          height = 4
          widget = {
            title = chart.title
            xyChart = {
              dataSets = [{
                plotType        = "LINE"
                timeSeriesQuery = { prometheusQuery = chart.query }
              }]
            }
          }
        },
      )]
    }
  })

  depends_on = [terraform_data.enabled]
}
