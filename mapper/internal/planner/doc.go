// Package planner plans the next page of a task: the entities that the task processes and commits
// together. It reads the keys of the task's range, and decides which entities form the page. It
// also decides where the range is cut, so that other workers can process parts of it.
package planner
