// Package planner plans what a delivery does next: it reads where the entities of a range are, says
// which of them are the next page, and where the range is cut.
package planner
