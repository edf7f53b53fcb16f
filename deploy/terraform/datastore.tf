# The module makes no database, so a destroy deletes no data. scattermap needs no composite index: an index that a query of
# yours needs is named when its job starts.

locals {
  database_project = var.database_project == "" ? var.project : var.database_project
  database         = var.database == "" ? "(default)" : var.database

  # The kinds of records that may expire, by their property expires: see Job.CleanUp.
  expiring = ["ScattermapJob", "ScattermapRange", "ScattermapUndoBatch"]
}
