package main

import (
	"crypto/rand"
	"fmt"

	"cloud.google.com/go/datastore"
)

// keyings are the kinds of keys that the accounts can have: values of the flag -keys.
var keyings = []string{"names", "ids", "mixed", "uuid", "ancestors"}

// accountKey returns the key of account i. The key is incomplete if Datastore is to allocate the
// ID.
func accountKey(keys string, i int) *datastore.Key {
	name := fmt.Sprintf("user-%07d", i)
	switch {
	case keys == "ids":
		return datastore.IncompleteKey("Account", nil)
	case keys == "mixed" && i < 20: // a few small IDs, and names for the rest
		return datastore.IDKey("Account", int64(i+1), nil)
	case keys == "uuid":
		var u [16]byte
		rand.Read(u[:])
		u[6], u[8] = u[6]&0x0f|0x40, u[8]&0x3f|0x80 // version 4, RFC 9562
		return datastore.NameKey("Account", fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:]), nil)
	case keys == "ancestors":
		// The regions differ much in size. Each customer has a few accounts.
		region := datastore.NameKey("Region", []string{"asia", "asia", "asia", "europe", "europe", "oceania"}[i%6], nil)
		customer := datastore.NameKey("Customer", fmt.Sprintf("c-%06d", i/4), region)
		return datastore.NameKey("Account", name, customer)
	}
	return datastore.NameKey("Account", name, nil)
}
