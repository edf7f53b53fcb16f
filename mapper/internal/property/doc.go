// Package property turns Go values into stored properties and back. It loads the properties that a
// type declares, finds out what saving a value changes, and leaves the rest as stored.
package property
