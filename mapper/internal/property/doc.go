// Package property converts Go values into stored properties and back. It loads the properties that
// a type declares, finds out what a function has changed in the value, and leaves the rest as
// stored.
//
// In this package, the client is the official Go client of Datastore. A value's saved form is a
// datastore.Property, as the client or a type's own Save method makes it from a Go value. Its
// stored form is the message that the database has. A struct declares a property if one of its
// fields is saved as this property. To resave is to store everything that the type declares, even
// if it is unchanged.
package property
