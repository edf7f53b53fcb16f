# A budget stops nothing. Its mails say how much of the monthly amount the whole project has cost.
resource "google_billing_budget" "project" {
  count = var.budget > 0 ? 1 : 0

  billing_account = var.billing_account
  display_name    = "${var.name}: ${var.project}"

  budget_filter {
    calendar_period = "MONTH"
    projects        = ["projects/${data.google_project.this.number}"] # the API answers the number
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
      monitoring_notification_channels = slice(local.channels, 0, min(5, length(local.channels))) # the API's limit
    }
  }
}
