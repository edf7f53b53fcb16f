// Package cloudlog writes lines of log/slog as Cloud Logging reads them from a container's output, such as Cloud Run's:
//
//	log := slog.New(cloudlog.NewHandler(os.Stderr, &cloudlog.Options{Project: "my-project"}))
//
// A line is JSON, with the severity, the message and the time under the names that Cloud Logging gives a meaning to
// (https://cloud.google.com/logging/docs/structured-logging). The attributes job, mapper and range are labels, so that the lines of
// a job are found without reading all. A line that is logged with the context of an OpenTelemetry span belongs to its trace.
package cloudlog
