package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// A User is an entity of the kind User.
type User struct {
	ID      int64  `datastore:"userid,omitempty"`
	Active  bool   `datastore:"active"`
	Email   string `datastore:"email,noindex"`
	Checked int64  `datastore:"checked,noindex"` // how often
}

// activeUsers are the users of the job, in the order of their ids.
var activeUsers = mapper.Query{
	Kind:    "User",
	Filters: []mapper.Filter{mapper.Where("active", "=", true)},
	ShardBy: "userid",
}

// checkUser checks a user, and turns the flag off. So the query does not find the user any more
// while the job still runs: it has been visited, and is not visited again.
var checkUser = mapper.Update("check-user", func(_ context.Context, u *mapper.Entity[User], _ mapper.None) error {
	if !strings.Contains(u.Value.Email, "@") {
		u.Count("invalid", 1)
	}
	u.Value.Active = false
	u.Value.Checked++
	return nil
})

// A tally is what the users add up to.
type tally struct {
	active, invalid int64
	unsorted        int64 // active users without an id
}

// putBatch is how many users are written at once.
const putBatch = 500

// growth is how unevenly ids are spread: half of the users have one in the first 8% of them.
const growth = 5

// writeUsers writes the same users each time. One in a thousand has no id.
func writeUsers(ctx context.Context, client *datastore.Client, n int) (sum tally, err error) {
	rng := rand.New(rand.NewPCG(7, 0))
	keys, users := make([]*datastore.Key, n), make([]User, n)
	for i := range n {
		id := int64(1e12 * math.Expm1(growth*float64(i+1)/float64(n+1)) / math.Expm1(growth))
		keys[i] = datastore.NameKey("User", fmt.Sprintf("%08x", rng.Uint32()), datastore.IDKey("Shard", int64(i+1), nil))
		users[i] = User{ID: 1 + id, Active: rng.IntN(3) > 0, Email: fmt.Sprintf("user%d@example.com", i)}
		if rng.IntN(100) == 0 {
			users[i].Email = "unknown"
		}
		if i%1000 == 999 {
			users[i].ID = 0
		}
		sum.add(users[i])
	}
	for i := 0; i < n && err == nil; i += putBatch {
		end := min(n, i+putBatch)
		_, err = client.PutMulti(ctx, keys[i:end], users[i:end])
	}
	return sum, err
}

// add adds a user who was not checked yet.
func (t *tally) add(u User) {
	switch {
	case !u.Active:
	case u.ID == 0:
		t.unsorted++
	default:
		t.active++
		if !strings.Contains(u.Email, "@") {
			t.invalid++
		}
	}
}

// checkUsers reads the users back, and compares them with what the job says and what they were:
// each active one with an id has been checked once, and no other.
func checkUsers(ctx context.Context, client *datastore.Client, s *mapper.Status, want tally) error {
	var users []User
	if _, err := client.GetAll(ctx, datastore.NewQuery("User"), &users); err != nil {
		return fmt.Errorf("read the users back: %w", err)
	}
	wrong := slices.IndexFunc(users, func(u User) bool {
		return u.Checked > 1 || u.Checked == 1 && (u.Active || u.ID == 0) || u.Active && u.ID != 0
	})
	if wrong >= 0 {
		return fmt.Errorf("a user was not checked exactly once if active: %+v", users[wrong])
	}
	checked := tally{}
	for _, u := range users {
		if u.Active = u.Checked == 1 || u.Active; u.Active {
			checked.add(u)
		}
	}
	if checked != want || s.Processed != want.active || s.Counters["invalid"] != want.invalid {
		return fmt.Errorf("%+v were checked, the job says %d and %v, want %+v", checked, s.Processed, s.Counters, want)
	}
	return nil
}
