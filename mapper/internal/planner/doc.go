// Package planner plans a task's next page: the entities that one commit processes. It reads the
// keys of the task's range, decides which entities form the page, and where the range is cut so
// that other workers can take parts of it.
package planner
