// Package model has what Datastore takes: keys, properties and values, their names
// and their limits.
package model

// KeyProperty is the name under which queries know keys.
const KeyProperty = "__key__"
