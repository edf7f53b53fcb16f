// Package property converts Go values into stored properties and back. It loads the properties that
// a type declares, finds out what saving a value changes, and leaves the rest as stored.
//
// In this package, the client is the official Go client of Datastore. A value's saved form is a
// datastore.Property, as the client or a type's own Save makes it from a Go value. Its stored form
// is the protocol's message, as the database has it. A struct declares the properties that its
// fields are saved as. To resave is to store everything that the type declares, even if it is
// unchanged.
package property
