// Package model has the rules of Datastore for keys, properties and values: their names and limits.
package model

// KeyProperty is the name of the key in queries.
const KeyProperty = "__key__"
