// Package cloudlog writes lines of log/slog as JSON that Cloud Logging understands. Use it where
// Cloud Logging reads a container's output, as on Cloud Run:
//
//	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: "my-project"}))
//
// Severity, message and time have the names that Cloud Logging expects
// (https://cloud.google.com/logging/docs/structured-logging). The attributes job, mapper and range
// become labels, so you find the lines of a job without reading all.
//
// The message of a line about a job ends with the job and its mapper, because lists of lines show
// nothing else: "job failed: spring (add-credit)". The field event has the part that such lines
// share, "job failed", for filters and alerts. Durations have their unit: "1m30s". A line that is
// logged with the context of an OpenTelemetry span belongs to its trace.
package cloudlog
