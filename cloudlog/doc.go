// Package cloudlog writes log/slog lines in the format that Cloud Logging reads from a container's
// output, for example on Cloud Run:
//
//	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: "my-project"}))
//
// A line is JSON. Severity, message and time have the names that Cloud Logging knows
// (https://cloud.google.com/logging/docs/structured-logging). The attributes job, mapper and range
// become labels, so that a query finds the lines of a job. The message of a line about a job ends
// with the job and its mapper, because lists of lines show only the message: "job failed: spring
// (add-credit)". The field event has the message without them, "job failed", for filters and
// alerts. Durations have their unit: "1m30s". A line logged with the context of an OpenTelemetry
// span belongs to its trace.
package cloudlog
