// Package telemetry counts and traces what the tasks of jobs do, by the OpenTelemetry API: where a
// program has set no provider it does next to nothing. docs/telemetry.md has the names.
package telemetry
