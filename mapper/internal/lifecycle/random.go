package lifecycle

import (
	"crypto/rand"
	"encoding/binary"
	mathrand "math/rand/v2"
	"sync"
)

// Unique returns a random number. In practice, no other call returns the same number.
func Unique() uint64 {
	var b [8]byte
	_, _ = rand.Read(b[:]) // never fails
	return binary.LittleEndian.Uint64(b[:])
}

// Seeded returns a function that returns a fixed sequence of numbers, which depends on the seed. It
// is safe for concurrent use.
func Seeded(seed uint64) func() uint64 {
	var turn sync.Mutex
	rng := mathrand.New(mathrand.NewPCG(seed, 1))
	return func() uint64 {
		turn.Lock()
		defer turn.Unlock()
		return rng.Uint64()
	}
}
