// Package observe tells those who look what becomes of jobs. An [Observer] writes one line for each
// change of a job's state, calls a hook of the user, and counts and traces what tasks do, by the
// OpenTelemetry API: where a program has set no provider that does next to nothing
// (docs/telemetry.md has the names). None of it holds up or harms a job. [Limited] keeps the lines
// about what goes wrong on the way to a few in a minute.
package observe
