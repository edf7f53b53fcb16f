// Package cloudlog writes lines of log/slog as Cloud Logging reads them from a container's output,
// such as Cloud Run's:
//
//	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: "my-project"}))
//
// A line is JSON, with the severity, the message and the time under the names that Cloud Logging
// gives a meaning to (https://cloud.google.com/logging/docs/structured-logging). The attributes
// job, mapper and range are labels, so that the lines of a job are found without reading all. The
// message of a line about a job ends with the job and its mapper, as lists of lines show nothing
// else: "job failed: spring (add-credit)". What all such lines have in common, "job failed", is the
// field event, for filters and alerts. Durations have their unit: "1m30s". A line that is logged
// with the context of an OpenTelemetry span belongs to its trace.
package cloudlog
