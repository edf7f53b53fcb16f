package mapper_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"cloud.google.com/go/datastore"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/internal/keyspace"
)

// A member is an account with what queries can filter by, and jobs be sharded by.
type member struct {
	Balance int64
	Owner   string
	Active  bool
	Rank    int64
	Since   time.Time
}

// putMembers puts the accounts. Some have the same rank.
func (s *simulation) putMembers() {
	for i := 0; i < len(s.keys); i += 400 {
		batch := s.keys[i:min(i+400, len(s.keys))]
		members := make([]member, len(batch))
		for j := range members {
			members[j] = member{Balance: int64(i + j), Owner: fmt.Sprint("owner ", i+j), Active: true,
				Rank:  s.rng.Int64N(500) * s.rng.Int64N(1000),
				Since: epoch.Add(time.Duration(s.rng.Int64N(1e9)) * time.Second)}
		}
		s.members = append(s.members, members...)
		if _, err := s.client.PutMulti(s.Context(), batch, members); err != nil {
			s.Fatal(err)
		}
	}
}

// forms are those of queries. Each is over all accounts, until the function has changed them;
// those with a ReadTime are over them as they are at first.
var forms = map[string]mapper.Query{
	"filter": {Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"in": {Filters: []mapper.Filter{{Property: "Active", Op: "in", Value: []any{true, "yes"},
		AllowAnyType: true}}},
	"inequality":       {Filters: []mapper.Filter{mapper.Where("Rank", ">=", 0)}},
	"keys":             {Start: datastore.IDKey("Account", 1, nil)},
	"value":            {ShardBy: "Rank"},
	"value and filter": {ShardBy: "Rank", Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"spaces":           {Kinds: []string{"Account", "Nothing"}, AllNamespaces: true},
	"spaces, filter": {Kinds: []string{"Account", "Nothing"}, Namespaces: []string{"", "n1", "n2", "n3"},
		Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"spaces, value":   {Kinds: []string{"Account", "Nothing"}, AllNamespaces: true, ShardBy: "Rank"},
	"keys only":       {KeysOnly: true},
	"snapshot":        {ReadTime: epoch},
	"snapshot, value": {ReadTime: epoch, ShardBy: "Rank", Filters: []mapper.Filter{mapper.Where("Active", "=", true)}},
	"values":          {ShardBy: "Since", Filters: []mapper.Filter{mapper.Where("Since", ">=", epoch)}},
}

// form chooses the form of the query.
func (s *simulation) form() mapper.Query {
	names := slices.Sorted(maps.Keys(forms))
	q, name := forms[names[s.rng.IntN(len(names))]], *formFlag
	if whole := s.rng.IntN(2) == 0; name == "" && whole {
		q = mapper.Query{}
	}
	if name != "" {
		var ok bool
		if q, ok = forms[name]; !ok {
			s.Fatalf("there is no form %q of a query; there are %q", name, names)
		}
	}
	if len(q.Kinds) > 0 {
		for i, k := range s.keys {
			s.keys[i] = inNamespace(k, []string{"", "n1", "n3"}[s.rng.IntN(1+s.rng.IntN(3))])
		}
		return q
	}
	q.Kind = "Account"
	s.visit = s.visit || q.KeysOnly || !q.ReadTime.IsZero() // an Update changes what it has read
	if q.Start != nil {
		q.Start = slices.MinFunc(s.keys, keyspace.CompareKeys)
	}
	return q
}

// inNamespace returns the key as it is in a namespace.
func inNamespace(k *datastore.Key, namespace string) *datastore.Key {
	if k == nil {
		return nil
	}
	return &datastore.Key{Kind: k.Kind, ID: k.ID, Name: k.Name, Parent: inNamespace(k.Parent, namespace),
		Namespace: namespace}
}

// keysOf draws a shape of keys.
func keysOf(rng *rand.Rand, n int) []*datastore.Key {
	shapes := []func(i int) *datastore.Key{
		func(i int) *datastore.Key { return names(i + 1)[i] },
		func(i int) *datastore.Key { return datastore.IDKey("Account", int64(i+1), nil) },
		func(int) *datastore.Key { return datastore.IDKey("Account", 1+rng.Int64N(1<<62), nil) },
		func(int) *datastore.Key {
			return datastore.NameKey("Account", fmt.Sprintf("%08x-%04x", rng.Uint32(), rng.Uint32()>>16), nil)
		},
		func(i int) *datastore.Key {
			group := datastore.NameKey("Group", fmt.Sprint("g", min(rng.IntN(40), 9)), nil)
			return datastore.IDKey("Account", int64(i+1), datastore.IDKey("Branch", 1+rng.Int64N(3), group))
		},
		func(i int) *datastore.Key {
			if i < n/10 {
				return datastore.IDKey("Account", int64(i+1), nil)
			}
			return datastore.NameKey("Account", fmt.Sprintf("2026-%02d/%d", i%12, i), nil)
		},
	}
	shape := shapes[rng.IntN(len(shapes))]
	seen := make(map[string]bool)
	var keys []*datastore.Key
	for i := 0; len(keys) < n; i++ {
		if k := shape(i); !seen[k.String()] {
			seen[k.String()] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// A fate is what the function does with an account until it is mended.
type fate int

const (
	good   fate = iota
	flaky       // it fails a few times
	later       // it asks for another time, once
	dying       // its process dies, twice
	failed      // from here on, for good: errors,
	never       // permanent ones,
	panics      // panics,
	hangs       // it does not return,
	left        // it does not return, and its process dies later,
	deadly      // its process dies
	fates
)

// fatesOf chooses a few accounts that the function has trouble with. With more of
// them on a page the job would fail.
func fatesOf(rng *rand.Rand, keys []*datastore.Key) map[string]fate {
	bad := make(map[string]fate)
	if rng.IntN(4) > 0 {
		bad[keys[rng.IntN(len(keys))].Encode()] = failed
		for range rng.IntN(5) {
			bad[keys[rng.IntN(len(keys))].Encode()] = 1 + fate(rng.IntN(int(fates-1)))
		}
	}
	return bad
}

// function is the mapper's function.
func (s *simulation) function(ctx context.Context, a *mapper.Entity[member], p credit) error {
	id := a.Key.Encode()
	s.mu.Lock()
	f, tries, broken := s.fates[id], s.tries[id], s.broken
	s.tries[id]++
	if s.mended {
		f = good
	}
	if s.idempotency[id] == nil {
		s.idempotency[id] = make(map[string]bool)
	}
	s.idempotency[id][a.IdempotencyKey()] = true
	s.mu.Unlock()
	time.Sleep(s.pace)
	switch {
	case broken:
		s.breakOnce.Do(func() { s.fleet.stops.freeze(2, 0.2) }) // on its way to fail the job
		return mapper.Permanent(errors.New("broken"))
	case f == flaky && tries < 3, f == failed:
		return errors.New("it fails")
	case f == later && tries == 0:
		return mapper.RetryAfter(errors.New("later"), 10*time.Minute)
	case f == never:
		return mapper.Permanent(errors.New("never"))
	case f == panics:
		panic("it panics")
	case f == hangs:
		time.Sleep(10 * time.Minute)
	case f == left:
		time.Sleep(30 * time.Second)
		return s.fleet.die(ctx)
	case f == dying && tries < 2, f == deadly:
		return s.fleet.die(ctx)
	}
	switch {
	case s.query.KeysOnly && a.Value != (member{}):
		s.Errorf("%v was read: %+v", a.Key, a.Value)
	case !s.query.ReadTime.IsZero() && (a.Value.Balance >= 1000 || a.Value.Owner == ""): // others add thousands
		s.Errorf("%v is not as it was: %+v", a.Key, a.Value)
	}
	s.putMate(a)
	a.Value.Balance += p.Amount
	a.Value.Active = false
	a.Count("credited", 1)
	a.Count(s.counter(a.Key), int64(len(id)))
	a.CountMin("length", int64(len(id)))
	a.CountMax("length", int64(len(id)))
	return nil
}

// counter returns the name under which an account is counted.
func (s *simulation) counter(k *datastore.Key) string {
	h := fnv.New32()
	_, _ = h.Write([]byte(k.Encode()))
	return fmt.Sprint("n", int(h.Sum32())%s.names)
}

// activate has every account satisfy the query again.
func (s *simulation) activate() {
	for i := 0; i < len(s.keys); i += 400 {
		batch := s.keys[i:min(i+400, len(s.keys))]
		all := make([]datastore.PropertyList, len(batch))
		if err := s.client.GetMulti(s.Context(), batch, all); err != nil {
			s.Fatal(err)
		}
		for _, list := range all {
			for j := range list {
				if list[j].Name == "Active" {
					list[j].Value = true
				}
			}
		}
		_, err := s.client.PutMulti(s.Context(), batch, all)
		for tries := 0; status.Code(err) == codes.Aborted && tries < 10; tries++ { // a process that is late has them
			time.Sleep(time.Second)
			_, err = s.client.PutMulti(s.Context(), batch, all)
		}
		if err != nil {
			s.Fatal(err)
		}
	}
}
