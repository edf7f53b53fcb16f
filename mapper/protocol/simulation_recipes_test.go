package protocol_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/emulator/faults"
	"github.com/scattermap/scattermap/internal/testflag"
	"github.com/scattermap/scattermap/mapper"
)

// TestRecipeSimulation runs the recipes of docs/recipes.md whose functions read and write other
// entities. Other clients write the same entities, with all kinds of faults. No entity may be lost,
// duplicated, or left unprocessed.
func TestRecipeSimulation(t *testing.T) {
	testflag.Simulate(t, 3, 2, func(t *testing.T, seed uint64) {
		testflag.SideBySide(t)
		synctest.Test(t, func(t *testing.T) { simulateRecipe(t, seed) })
	})
}

// A recipe is one run of TestRecipeSimulation: a recipe of docs/recipes.md, in a world with other
// clients.
type recipe struct {
	*undoSimulation
	people []*rand.Rand // a source of random numbers for each of the other clients
}

func simulateRecipe(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 44))
	r := &recipe{undoSimulation: &undoSimulation{rng: rng, faults: faults.New(seed, trouble(rng)...),
		n: 10 + rng.IntN(200)}}
	all := []mapper.AnyMapper{NameClubs, MergeCards, MoveUsers, MoveTeams, MovePlayers}
	r.faults.Pause()
	r.world = newWorld(t, setting{
		emulator: emulator.Options{Faults: r.faults, PessimisticConcurrency: rng.IntN(3) == 0,
			Retention: 60 * 24 * time.Hour},
		queue: few(int32(1 + rng.IntN(12))), deadline: time.Duration(60+rng.IntN(1200)) * time.Second,
		plain: rng.IntN(4) == 0,
	}, all...)
	r.fleet = newFleet(r.world, seed, 1+rng.IntN(4), all...)
	r.fleet.fails.Store(false)
	r.fleet.zombies = rng.Float64() / 3
	r.fleet.stops.most = time.Hour
	for range 1 + rng.IntN(3) {
		r.people = append(r.people, rand.New(rand.NewPCG(rng.Uint64(), 0)))
	}
	name := []string{"join", "merge", "move", "descendants"}[rng.IntN(4)]
	map[string]func(){"join": r.join, "merge": r.merge, "move": r.move, "descendants": r.descendants}[name]()
	t.Logf("%s: %d entities; %d processes died; went wrong: %v", name, r.n, r.fleet.deaths(), r.faults.Counts())
}

// put puts an entity before the job starts.
func (r *recipe) put(key *datastore.Key, src any) {
	_, err := r.client.Put(r.Context(), key, src)
	r.must(err)
}

// run runs the named jobs one after the other. Meanwhile each of the other clients calls act a
// number of times. At the end, run waits for late calls, and returns the last job's status.
func (r *recipe) run(act func(rng *rand.Rand), jobs ...string) (last *mapper.Status) {
	r.trouble()
	var people sync.WaitGroup
	for _, rng := range r.people {
		people.Go(func() {
			for range rng.IntN(100) {
				act(rng)
				time.Sleep(time.Duration(rng.IntN(100)) * time.Millisecond)
			}
		})
	}
	mappers := map[string]*mapper.Mapper[mapper.NoParams]{
		"Member": NameClubs, "Card": MergeCards, "User": MoveUsers, "Team": MoveTeams, "Player": MovePlayers,
	}
	for _, kind := range jobs {
		r.again("start", func() error {
			_, err := mappers[kind].Start(r.Context(), r.fleet.pick().engine, mapper.Query{Kind: kind},
				mapper.NoParams{},
				&mapper.StartOptions{
					ID: kind, PageSize: 3 + r.rng.IntN(60), FailureLimit: -1, AllowEmpty: true,
				})
			return err
		})
		last = r.await(kind)
		if !last.State.Ended() || last.State == mapper.StateFailed {
			r.Errorf("the job over %s is %s: %s", kind, last.State, last.Error)
		}
	}
	r.faults.Pause()
	r.fleet.stops.calm()
	r.fleet.thaw()
	people.Wait()
	time.Sleep(24 * time.Hour)
	for _, kind := range jobs {
		if proof, err := r.engine.Job(kind).Verify(r.Context(), nil); err != nil || len(proof.Problems) > 0 {
			r.Errorf("proof of the job over %s: %+v, %v", kind, proof, err)
		}
	}
	return last
}

// all loads the entities of a kind.
func all[T any](r *recipe, kind string) (keys []*datastore.Key, entities []T) {
	keys, err := r.client.GetAll(r.Context(), datastore.NewQuery(kind), &entities)
	r.must(err)
	return keys, entities
}

// failures returns the number of failures of a job. The cause of each must be why.
func (r *recipe) failures(kind, why string) (n int) {
	for cursor := ""; ; {
		failures, next, err := r.engine.Job(kind).FailuresPage(r.Context(), cursor)
		r.must(err)
		for _, f := range failures {
			if n++; !strings.Contains(f.Error, why) {
				r.Errorf("%v has failed: %s", f.Key, f.Error)
			}
		}
		if cursor = next; cursor == "" {
			return n
		}
	}
}

// join runs the recipe that copies the names of clubs to their members. Meanwhile other clients
// rename clubs together with their members, and members change their clubs.
func (r *recipe) join() {
	const clubs = 5
	club := func(i int) *datastore.Key { return datastore.IDKey("Club", int64(i+1), nil) }
	member := func(i int) *datastore.Key { return datastore.NameKey("Member", fmt.Sprintf("m-%05d", i), nil) }
	for i := range clubs {
		r.put(club(i), &Club{fmt.Sprint("club ", i)})
	}
	for i := range r.n {
		r.put(member(i), &Member{Club: club(i % clubs)})
	}
	var members []*datastore.Key
	for i := range r.n {
		members = append(members, member(i))
	}
	r.run(func(rng *rand.Rand) {
		if rng.IntN(2) == 0 { // a member changes its club
			m, to := member(rng.IntN(r.n)), club(rng.IntN(clubs))
			r.once(func(tx *datastore.Transaction) (int64, error) {
				var c Club
				if err := tx.Get(to, &c); err != nil {
					return 0, err
				}
				_, err := tx.Put(m, &Member{Club: to, ClubName: c.Name})
				return 0, err
			})
			return
		}
		renamed, name := club(rng.IntN(clubs)), fmt.Sprint("renamed ", rng.Uint64())
		r.once(func(tx *datastore.Transaction) (int64, error) {
			of := make([]Member, len(members))
			if err := tx.GetMulti(members, of); err != nil {
				return 0, err
			}
			for i, m := range of {
				if m.Club.Equal(renamed) {
					m.ClubName = name
					if _, err := tx.Put(members[i], &m); err != nil {
						return 0, err
					}
				}
			}
			_, err := tx.Put(renamed, &Club{name})
			return 0, err
		})
	}, "Member")
	names := make(map[string]string)
	keys, found := all[Club](r, "Club")
	for i, c := range found {
		names[keys[i].String()] = c.Name
	}
	keys, named := all[Member](r, "Member")
	for i, m := range named {
		if want := names[m.Club.String()]; m.ClubName != want {
			r.Errorf("%v has the name %q of its club, want %q", keys[i], m.ClubName, want)
		}
	}
	if len(named) != r.n {
		r.Errorf("%d members, want %d", len(named), r.n)
	}
	r.failures("Member", "none is expected")
}

// merge runs the recipe that merges cards. Meanwhile other clients add points to existing cards.
func (r *recipe) merge() {
	emails := 1 + r.rng.IntN(r.n)
	email := func(i int) string { // one of several spellings of an address
		e := fmt.Sprintf("e%d@example.com", i)
		return []string{e, strings.ToUpper(e), "E" + e[1:]}[r.rng.IntN(3)]
	}
	want, distinct := int64(0), make(map[int]bool)
	for i := range r.n {
		e := r.rng.IntN(emails)
		distinct[e] = true
		r.put(datastore.IDKey("Card", int64(i+1), nil), &Card{email(e), int64(i)})
		want += int64(i)
	}
	r.run(func(rng *rand.Rand) {
		key := datastore.IDKey("Card", 1+rng.Int64N(int64(r.n)), nil)
		if rng.IntN(2) == 0 {
			key = datastore.NameKey("Card", fmt.Sprintf("e%d@example.com", rng.IntN(emails)), nil)
		}
		points := rng.Int64N(1000)
		r.once(func(tx *datastore.Transaction) (int64, error) {
			var c Card
			if err := tx.Get(key, &c); err != nil {
				return 0, err
			}
			c.Points += points
			_, err := tx.Put(key, &c)
			return points, err
		})
	}, "Card")
	_, cards := all[Card](r, "Card")
	have := int64(0)
	for _, c := range cards {
		have += c.Points
	}
	if want += r.noted(); have != want || len(cards) != len(distinct) {
		r.Errorf("%d cards of %d points, want %d of %d", len(cards), have, len(distinct), want)
	}
	r.failures("Card", "none is expected")
}

// A visitor is a user or a customer, in the recipe that moves users to customers.
type visitor struct {
	ID     int64 // the ID of the user
	Email  string
	Visits int64
}

// move runs the recipe that moves users to customers. Meanwhile other clients count visits of both.
// Some users have the same address.
func (r *recipe) move() {
	addresses := 1 + r.rng.IntN(2*r.n)
	mail := make([]string, r.n+1)
	user := func(id int64) *datastore.Key { return datastore.IDKey("User", id, nil) }
	customer := func(id int64) *datastore.Key { return datastore.NameKey("Customer", mail[id], nil) }
	distinct := make(map[string]bool)
	for i := range r.n {
		id := int64(i + 1)
		mail[id] = fmt.Sprintf("e%d@example.com", r.rng.IntN(addresses))
		distinct[mail[id]] = true
		r.put(user(id), &visitor{ID: id, Email: mail[id]})
	}
	r.run(func(rng *rand.Rand) {
		id, visits := 1+rng.Int64N(int64(r.n)), rng.Int64N(10)
		r.once(func(tx *datastore.Transaction) (int64, error) {
			key := user(id)
			var v visitor
			err := tx.Get(key, &v)
			if errors.Is(err, datastore.ErrNoSuchEntity) {
				key = customer(id)
				err = tx.Get(key, &v)
			}
			if err == nil && v.ID != id {
				r.Errorf("user %d is lost: %+v has its address", id, v)
				err = datastore.ErrNoSuchEntity
			}
			if err != nil {
				return 0, err
			}
			v.Visits += visits
			_, err = tx.Put(key, &v)
			return visits, err
		})
	}, "User")
	_, users := all[visitor](r, "User")
	_, customers := all[visitor](r, "Customer")
	visits, once := int64(0), make(map[int64]bool)
	for _, v := range append(users, customers...) {
		visits, once[v.ID] = visits+v.Visits, true
	}
	if want := r.noted(); visits != want || len(once) != r.n || len(users)+len(customers) != r.n ||
		len(customers) != len(distinct) {
		r.Errorf("%d users and %d customers, %d of them different, %d visits; want %d, %d of them customers, %d visits",
			len(users), len(customers), len(once), visits, r.n, len(distinct), want)
	}
	if failed := r.failures("User", "which is there"); failed != len(users) {
		r.Errorf("%d failures, want one for each of %d users that stay", failed, len(users))
	}
}

// A scorer is a player, in the recipe that moves teams.
type scorer struct{ Goals int64 }

// descendants runs the recipe that moves teams together with their players. Meanwhile other clients
// put players and count goals.
func (r *recipe) descendants() {
	teams := 1 + r.rng.IntN(20)
	team := func(i int) *datastore.Key { return datastore.IDKey("Team", int64(i+1), nil) }
	player := func(i int, of *datastore.Key) *datastore.Key {
		return datastore.NameKey("Player", fmt.Sprintf("p-%05d", i), of)
	}
	taken := r.rng.IntN(teams + 3) // the number of a club that already exists
	if taken < teams {
		r.put(datastore.NameKey("Club", fmt.Sprint("team ", taken+1), nil), &Club{"there"})
	}
	for i := range teams {
		r.put(team(i), &datastore.PropertyList{{Name: "Seats", Value: int64(i)}})
	}
	for i := range r.n {
		r.put(player(i, team(i%teams)), &scorer{})
	}
	r.run(func(rng *rand.Rand) {
		i, goals := rng.IntN(r.n+20), rng.Int64N(10)
		r.once(func(tx *datastore.Transaction) (int64, error) {
			var of struct{ MovedTo *datastore.Key }
			err := tx.Get(team(i%teams), &of)
			if fields := new(datastore.ErrFieldMismatch); err != nil && !errors.As(err, &fields) {
				return 0, err
			}
			var s scorer
			key := player(i, team(i%teams))
			if of.MovedTo != nil {
				below := player(i, of.MovedTo)
				err := tx.Get(below, &s)
				if errors.Is(err, datastore.ErrNoSuchEntity) {
					err = tx.Get(key, &s)
				} else {
					key = below
				}
				if errors.Is(err, datastore.ErrNoSuchEntity) {
					key, err = below, nil // the key of a new club
				}
				if err != nil {
					return 0, err
				}
			} else if err := tx.Get(key, &s); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
				return 0, err
			}
			s.Goals += goals
			_, err = tx.Put(key, &s)
			return goals, err
		})
	}, "Team", "Player")
	keys, players := all[scorer](r, "Player")
	goals, once := int64(0), make(map[string]bool)
	for i, s := range players {
		goals += s.Goals
		once[keys[i].Name] = true
		if moved := keys[i].Parent.Kind == "Club"; moved == (keys[i].Parent.ID == int64(taken+1)) {
			r.Errorf("%v: is it where it belongs?", keys[i])
		}
	}
	if want := r.noted(); goals != want || len(once) != len(players) || len(once) < r.n {
		r.Errorf("%d players, %d of them different, %d goals; want at least %d, and %d goals", len(players), len(once),
			goals, r.n, want)
	}
	if failed, want := r.failures("Team", "which is there"), taken < teams; (failed > 0) != want {
		r.Errorf("%d teams have failed, want that: %v", failed, want)
	}
	r.failures("Player", "none is expected")
}
