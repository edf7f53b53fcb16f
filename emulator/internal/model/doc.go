// Package model checks keys, properties and values by Datastore's rules: their names and limits.
package model

// KeyProperty is the name by which queries refer to the key.
const KeyProperty = "__key__"
