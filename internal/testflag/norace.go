//go:build !race

package testflag

const raced = false
