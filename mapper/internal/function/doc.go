// Package function calls a user's function without knowing its types: a [Definition] is a mapper
// without them, an [Attempt] is one run on one entity and collects what it asks for, an [Effect],
// and [Calls] makes calls that may take too long.
package function
