# A budget stops nothing: it tells of the month's costs of the whole project.
resource "google_billing_budget" "project" {
  count = var.budget > 0 ? 1 : 0

  billing_account = var.billing_account
  display_name    = "${var.name}: ${var.project}"

  budget_filter {
    calendar_period = "MONTH"
    projects        = ["projects/${data.google_project.this.number}"] # by its number, as the API answers it
  }

  amount {
    specified_amount {
      units = tostring(floor(var.budget))
    }
  }

  dynamic "threshold_rules" {
    for_each = [0.5, 0.9, 1]
    content {
      threshold_percent = threshold_rules.value
    }
  }

  dynamic "all_updates_rule" {
    for_each = length(local.channels) > 0 ? [1] : []
    content {
      monitoring_notification_channels = slice(local.channels, 0, min(5, length(local.channels))) # no more are allowed
    }
  }
}
