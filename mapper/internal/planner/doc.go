// Package planner plans the next page of a delivery. It reads the keys of a range, and decides
// which entities form the page, and where the range is cut.
package planner
