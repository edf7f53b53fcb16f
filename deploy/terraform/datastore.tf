# scattermap needs no composite index: what a query of yours needs is named when its job starts.

locals {
  # The kinds of its records that may expire, see Job.CleanUp.
  kinds = ["ScattermapJob", "ScattermapRange"]
}

# Records with the property expires are deleted once that is over.
resource "google_firestore_field" "expires" {
  for_each = toset(local.kinds)

  project    = var.project
  database   = var.database == "" ? "(default)" : var.database
  collection = each.value
  field      = "expires"

  ttl_config {}
}
