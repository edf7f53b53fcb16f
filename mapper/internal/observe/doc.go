// Package observe reports what happens to jobs. An [Observer] logs a line for each change of a
// job's state, and calls the user's function. It also counts and traces the work of tasks with
// OpenTelemetry. docs/telemetry.md has the names. If the program sets no OpenTelemetry provider,
// this costs almost nothing.
//
// Nothing here delays a job for long or makes it fail. [Limited] limits warnings and errors to a
// few per minute.
package observe
