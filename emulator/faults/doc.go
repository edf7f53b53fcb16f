// Package faults makes the calls and deliveries of an emulator go wrong, by rules and by a seed.
package faults
