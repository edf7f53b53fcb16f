package mapper_test

import (
	"cmp"
	"slices"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// Some accounts of a simulation put others, which are near them in the order of the keys and often
// in the same page. No other client touches those. After a job such an account has what was put, or
// that and its own credit: never what it had before.
type mates struct {
	puts     map[string]int         // by the key of the account that puts: which one it puts
	balances map[int]map[int64]bool // of an account that is put: what it may have
}

// pair chooses who puts whom.
func (s *simulation) pair() {
	s.puts, s.balances = make(map[string]int), make(map[int]map[int64]bool)
	if s.visit {
		return
	}
	order := make([]int, len(s.keys))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Or(keyspace.CompareKeys(s.keys[a], s.keys[b]), a-b) })
	for range s.dice.IntN(6) {
		at := s.dice.IntN(len(order) - 3)
		from, to := order[at], order[at+1+s.dice.IntN(3)]
		_, puts := s.puts[s.keys[from].Encode()]
		_, chain := s.puts[s.keys[to].Encode()]
		if s.balances[from] == nil && s.balances[to] == nil && !puts && !chain {
			s.puts[s.keys[from].Encode()] = to
			s.balances[to] = map[int64]bool{int64(to): true}
		}
	}
}

// put is what an account puts in a round.
func (s *simulation) put(round, to int) int64 { return int64(1e9)*int64(round) + int64(to) }

// putMate has the function put another account, if its own one does.
func (s *simulation) putMate(a *mapper.Entity[member]) {
	to, ok := s.puts[a.Key.Encode()]
	if !ok {
		return
	}
	s.mu.Lock()
	m := s.members[to]
	m.Balance = s.put(s.round, to)
	s.mu.Unlock()
	a.Put(s.keys[to], &m)
}

// matesPut notes that a job is over, which has not come to all accounts if it was aborted.
func (s *simulation) matesPut(aborted bool) {
	for to, before := range s.balances {
		x := s.put(s.round, to)
		after := map[int64]bool{x: true, x + 10: true}
		if aborted {
			for b := range before {
				after[b], after[b+10] = true, true
			}
		}
		s.balances[to] = after
	}
}
