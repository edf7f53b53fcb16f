// Package function calls a user's function without knowing its Go types. A [Definition] is a mapper
// (a named function and its settings) without these types. An [Attempt] is one run of the function
// on one entity. It collects an [Effect]: the writes and counts that the function asks for. [Calls]
// limits the time of the function's calls.
package function
