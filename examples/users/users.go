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
	ID *int64 `datastore:"userid,omitempty"` // a random number in [0, idSpace)
	// when the user joined, in seconds from the start, in [0, joinedSpace)
	Joined  *int64 `datastore:"joined,omitempty"`
	Active  bool   `datastore:"active"`
	Email   string `datastore:"email,noindex"`
	Checked int64  `datastore:"checked,noindex"` // how many times the user was checked
}

const (
	idSpace     int64 = 1 << 32
	joinedSpace int64 = 5 * 365 * 24 * 3600 // the number of seconds in five years
	keySpace    int64 = 1 << 53             // IDs that Datastore allocates are below this number
)

// checkUser is a mapper that checks a user, and sets the user's flag Active to false. The job's
// query filters by this flag, so it no longer finds the user, although the job still runs. This
// does no harm, because the user has been processed.
var checkUser = mapper.Update("check-user", func(_ context.Context, u *mapper.Entity[User], _ mapper.NoParams) error {
	if !strings.Contains(u.Value.Email, "@") {
		u.Count("invalid", 1)
	}
	u.Value.Active = false
	u.Value.Checked++
	return nil
})

// A tally has sums over the users, for one order.
type tally struct {
	active, invalid int64
	without         int64 // number of active users without the order's property
}

// putBatch is the number of users that are written in one call.
const putBatch = 500

// growth is the exponent of the distribution of the times at which users join. With 5, half of them
// join in the first 8% of the time.
const growth = 5

// writeUsers writes n users, the same ones each time. It returns the sums over the users in the
// order of. One user in a thousand has neither a user ID nor a time.
func writeUsers(ctx context.Context, client *datastore.Client, n int, of order) (sum tally, err error) {
	rng := rand.New(rand.NewPCG(7, 0))
	keys, users := make([]*datastore.Key, n), make([]User, n)
	for i := range n {
		id := rng.Int64N(idSpace)
		joined := int64(float64(joinedSpace-1) * math.Expm1(growth*float64(i+1)/float64(n+1)) / math.Expm1(growth))
		keys[i] = datastore.IDKey("User", 1+rng.Int64N(keySpace-1), nil)
		users[i] = User{ID: &id, Joined: &joined, Active: rng.IntN(3) > 0, Email: fmt.Sprintf("user%d@example.com", i)}
		if rng.IntN(100) == 0 {
			users[i].Email = "unknown"
		}
		if i%1000 == 999 {
			users[i].ID, users[i].Joined = nil, nil
		}
		sum.add(users[i], of)
	}
	for i := 0; i < n && err == nil; i += putBatch {
		end := min(n, i+putBatch)
		_, err = client.PutMulti(ctx, keys[i:end], users[i:end])
	}
	return sum, err
}

// add adds a user, who was not checked yet, to the sums for the order of.
func (t *tally) add(u User, of order) {
	switch {
	case !u.Active:
	case !of.has(u):
		t.without++
	default:
		t.active++
		if !strings.Contains(u.Email, "@") {
			t.invalid++
		}
	}
}

// checkUsers reads the users after the job. It returns an error if they do not fit the job's
// counters and the parameter want, the sums from before the job. The job must have checked once
// each active user that has the property of the order, and no other user.
func checkUsers(ctx context.Context, client *datastore.Client, s *mapper.Status, want tally, of order) error {
	var users []User
	if _, err := client.GetAll(ctx, datastore.NewQuery("User"), &users); err != nil {
		return fmt.Errorf("read the users back: %w", err)
	}
	wrong := slices.IndexFunc(users, func(u User) bool {
		return u.Checked > 1 || u.Checked == 1 && (u.Active || !of.has(u)) || u.Active && of.has(u)
	})
	if wrong >= 0 {
		return fmt.Errorf("a user was not checked exactly once if active: %+v", users[wrong])
	}
	checked := tally{}
	for _, u := range users {
		if u.Active = u.Checked == 1 || u.Active; u.Active {
			checked.add(u, of)
		}
	}
	if checked != want || s.Processed != want.active || s.Counters["invalid"] != want.invalid {
		return fmt.Errorf("%+v were checked, the job says %d and %v, want %+v", checked, s.Processed, s.Counters, want)
	}
	return nil
}
