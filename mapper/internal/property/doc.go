// Package property turns Go values into stored properties and back: it loads what a type declares,
// finds what saving a value changes, and leaves the rest as it is stored.
package property
