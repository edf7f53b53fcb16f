// Package planner plans what a delivery does next. It reads the keys of a range, and decides which
// entities form the next page, and where the range is cut.
package planner
