package mapper_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"cloud.google.com/go/cloudtasks/apiv2/cloudtaskspb"
	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/mappertest"
	"github.com/scattermap/scattermap/tasks"
)

// The code of docs/recipes.md equals the code of this file.

// Backfill a field.

type Team struct {
	Seats int
	Large bool // new
}

var SetLarge = mapper.Update("set-large", func(_ context.Context, t *mapper.Entity[Team], _ mapper.NoParams) error {
	t.Value.Large = t.Value.Seats > 10
	return nil
})

func startBackfill(ctx context.Context, m *mapper.Engine) (*mapper.Job, error) {
	return SetLarge.Start(ctx, m, mapper.Query{Kind: "Team"}, mapper.NoParams{}, &mapper.StartOptions{ID: "set-large"})
}

func Example_backfill() {
	ctx := context.Background()
	client, m, stop := engine(ctx, SetLarge)
	defer stop()
	type team struct{ Seats int } // the old type
	for _, seats := range []int{3, 11, 20} {
		put(client, datastore.IncompleteKey("Team", nil), &team{seats})
	}
	job, err := startBackfill(ctx, m)
	s := wait(ctx, job, err)
	small, err := client.Count(ctx, datastore.NewQuery("Team").FilterField("Large", "=", false))
	fmt.Println(s.State, s.Written, "written,", small, "not large,", err)
	// Output: succeeded 3 written, 1 not large, <nil>
}

// Delete by age.

type Session struct{ Seen time.Time }

var DeleteSessions = mapper.Update("delete-sessions",
	func(_ context.Context, s *mapper.Entity[Session], _ mapper.NoParams) error {
		s.Delete(s.Key)
		return nil
	})

func startDeletion(ctx context.Context, m *mapper.Engine, before time.Time) (*mapper.Job, error) {
	before = before.UTC().Truncate(24 * time.Hour) // so that all jobs of a day have one query, and are one job
	return DeleteSessions.Start(ctx, m, mapper.Query{
		Kind:     "Session",
		KeysOnly: true, // the function needs no more
		Filters:  []mapper.Filter{mapper.Where("Seen", "<", before)},
	}, mapper.NoParams{}, &mapper.StartOptions{ID: "delete-sessions-" + before.Format("2006-01-02")})
}

func Example_deleteByAge() {
	ctx := context.Background()
	client, m, stop := engine(ctx, DeleteSessions)
	defer stop()
	october := time.Date(2026, 10, 1, 0, 0, 0, 0, time.UTC)
	for day := range 10 {
		put(client, datastore.IncompleteKey("Session", nil), &Session{october.AddDate(0, 0, day)})
	}
	week := october.AddDate(0, 0, 7)
	job, err := startDeletion(ctx, m, week.Add(3*time.Hour))
	s := wait(ctx, job, err)
	again, err := startDeletion(ctx, m, week.Add(4*time.Hour))
	fmt.Println("started again it is the same job:", again.ID == job.ID, err)
	left, err := client.Count(ctx, datastore.NewQuery("Session"))
	fmt.Println(s.State, s.Written, "deleted,", left, "left,", err)
	// Output:
	// started again it is the same job: true <nil>
	// succeeded 7 deleted, 3 left, <nil>
}

// Move to another key.

var MoveUsers = mapper.Update("move-users",
	func(_ context.Context, u *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
		stored := u.Stored()
		email := strings.ToLower(stored.Properties["Email"].GetStringValue())
		if email == "" {
			return mapper.Permanent(errors.New("it has no Email to be its name"))
		}
		u.InsertStored(datastore.NameKey("Customer", email, nil), stored) // unchanged, to the last flag
		u.Delete(u.Key)
		return nil
	})

func startMove(ctx context.Context, m *mapper.Engine) (*mapper.Job, error) {
	return MoveUsers.Start(ctx, m, mapper.Query{Kind: "User"}, mapper.NoParams{},
		&mapper.StartOptions{ID: "move-users"})
}

func Example_move() {
	ctx := context.Background()
	client, m, stop := engine(ctx, MoveUsers)
	defer stop()
	type person struct{ Name, Email string }
	for i, p := range []person{{"Ann", "ann@example.com"}, {"Annabel", "Ann@example.com"}} {
		put(client, datastore.IDKey("User", int64(i+1), nil), &p)
	}
	job, err := startMove(ctx, m)
	s := wait(ctx, job, err)
	var ann person
	err = client.Get(ctx, datastore.NameKey("Customer", "ann@example.com", nil), &ann)
	fmt.Println(s.State, s.Written, "moved,", s.Failures, "failed,", ann.Name, err)
	failures, _, err := job.FailuresPage(ctx, "")
	fmt.Println(len(failures), "listed,", err)
	fmt.Println(failures[0].Error)
	// Output:
	// succeeded with failures 1 moved, 1 failed, Ann <nil>
	// 1 listed, <nil>
	// /User,2 inserts /Customer,ann@example.com, which is there: an entity before it, of the same page, has put it
}

// Move with descendants.

var MoveTeams = mapper.Update("move-teams",
	func(_ context.Context, t *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
		to := datastore.NameKey("Club", fmt.Sprint("team ", t.Key.ID), nil)
		if slices.ContainsFunc(t.Value, func(p datastore.Property) bool { return p.Name == "MovedTo" }) {
			return mapper.Skip // it has been moved
		}
		t.InsertStored(to, t.Stored())
		t.Value = datastore.PropertyList{{Name: "MovedTo", Value: to}} // the old team keeps only this property
		return nil
	})

var MovePlayers = mapper.Update("move-players",
	func(ctx context.Context, p *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
		var parent struct{ MovedTo *datastore.Key }
		if err := p.Get(ctx, p.Key.Parent, &parent); err != nil {
			return err
		}
		if parent.MovedTo == nil {
			return mapper.Skip // it is a club, or a team that stays
		}
		to := *p.Key
		to.Parent = parent.MovedTo
		p.InsertStored(&to, p.Stored())
		p.Delete(p.Key)
		return nil
	})

func Example_moveWithDescendants() {
	ctx := context.Background()
	client, m, stop := engine(ctx, MoveTeams, MovePlayers)
	defer stop()
	type player struct{ Name string }
	team := datastore.IDKey("Team", 7, nil)
	put(client, team, &Team{Seats: 11})
	put(client, datastore.IDKey("Player", 1, team), &player{"Ann"})
	for _, move := range []struct {
		mapper *mapper.Mapper[mapper.NoParams]
		kind   string
	}{{MoveTeams, "Team"}, {MovePlayers, "Player"}} { // one after the other
		job, err := move.mapper.Start(ctx, m, mapper.Query{Kind: move.kind}, mapper.NoParams{}, nil)
		fmt.Println(move.kind, wait(ctx, job, err).State)
	}
	club := datastore.NameKey("Club", "team 7", nil)
	var moved Team
	var ann player
	fmt.Println(client.Get(ctx, club, &moved), client.Get(ctx, datastore.IDKey("Player", 1, club), &ann))
	fmt.Println(moved.Seats, "seats,", ann.Name)
	// Output:
	// Team succeeded
	// Player succeeded
	// <nil> <nil>
	// 11 seats, Ann
}

// Copy from another entity.

type Club struct{ Name string }

type Member struct {
	Club     *datastore.Key
	ClubName string // copied from the club
}

var NameClubs = mapper.UpdateReading("name-clubs",
	func(m *mapper.Entity[Member], _ mapper.NoParams) []*datastore.Key {
		return []*datastore.Key{m.Value.Club}
	},
	func(ctx context.Context, m *mapper.Entity[Member], _ mapper.NoParams) error {
		var club Club
		if err := m.Get(ctx, m.Value.Club, &club); err != nil {
			return err
		}
		m.Value.ClubName = club.Name
		return nil
	})

func Example_join() {
	ctx := context.Background()
	client, m, stop := engine(ctx, NameClubs)
	defer stop()
	club, ann := datastore.NameKey("Club", "chess", nil), datastore.NameKey("Member", "ann", nil)
	put(client, club, &Club{"Chess"})
	put(client, ann, &Member{Club: club})
	job, err := NameClubs.Start(ctx, m, mapper.Query{Kind: "Member"}, mapper.NoParams{}, nil)
	s := wait(ctx, job, err)
	var named Member
	err = client.Get(ctx, ann, &named)
	fmt.Println(s.State, named.ClubName, err)
	// Output: succeeded Chess <nil>
}

// Merge duplicates.

type Card struct {
	Email  string
	Points int64
}

var MergeCards = mapper.Update("merge-cards",
	func(ctx context.Context, c *mapper.Entity[Card], _ mapper.NoParams) error {
		first := datastore.NameKey("Card", strings.ToLower(c.Value.Email), nil)
		if c.Key.Equal(first) {
			return mapper.Skip // it is the one that stays
		}
		var merged Card
		if err := c.Get(ctx, first, &merged); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
			return err
		}
		merged.Email, merged.Points = first.Name, merged.Points+c.Value.Points
		c.Put(first, &merged)
		c.Delete(c.Key)
		return nil
	})

func Example_merge() {
	ctx := context.Background()
	client, m, stop := engine(ctx, MergeCards)
	defer stop()
	for i, a := range []Card{{"ann@example.com", 3}, {"Ann@example.com", 4}, {"bob@example.com", 5}} {
		put(client, datastore.IDKey("Card", int64(i+1), nil), &a)
	}
	job, err := MergeCards.Start(ctx, m, mapper.Query{Kind: "Card"}, mapper.NoParams{}, nil)
	s := wait(ctx, job, err)
	var ann Card
	err = client.Get(ctx, datastore.NameKey("Card", "ann@example.com", nil), &ann)
	n, _ := client.Count(ctx, datastore.NewQuery("Card"))
	fmt.Println(s.State, ann.Points, "points,", n, "cards,", err)
	// Output: succeeded 7 points, 2 cards, <nil>
}

// A nightly job.

func startNightly(ctx context.Context, m *mapper.Engine, due time.Time, zone *time.Location) (*mapper.Job, error) {
	id := func(night time.Time) string { return "expire-" + night.Format("2006-01-02") }
	year, month, day := due.In(zone).Date()
	night := time.Date(year, month, day, 0, 0, 0, 0, time.UTC) // a date: no clock is put forward or back in it
	job, err := DeleteSessions.Start(ctx, m, mapper.Query{
		Kind: "Session", KeysOnly: true, Filters: []mapper.Filter{mapper.Where("Seen", "<", night.AddDate(0, 0, -30))},
	}, mapper.NoParams{}, &mapper.StartOptions{
		ID:         id(night), // the scheduler may call twice: it is one job
		AllowEmpty: true,      // there may be no sessions at all
	})
	if err != nil {
		return nil, err
	}
	// The records of the job of a week ago are needed no more.
	err = m.Job(id(night.AddDate(0, 0, -7))).CleanUp(ctx, &mapper.CleanUpOptions{IncludeJob: true})
	if errors.Is(err, mapper.ErrNoSuchJob) {
		err = nil
	}
	return job, err
}

func Example_nightly() {
	ctx := context.Background()
	_, m, stop := engine(ctx, DeleteSessions)
	defer stop()
	night := time.Date(2026, 10, 1, 3, 0, 0, 0, time.UTC)
	for _, now := range []time.Time{night, night.Add(time.Minute), night.AddDate(0, 0, 7)} {
		job, err := startNightly(ctx, m, now, time.UTC)
		fmt.Println(job.ID, wait(ctx, job, err).State)
	}
	s, err := m.Job("expire-2026-10-01").Status(ctx)
	fmt.Println("the first one is cleaned up:", errors.Is(err, mapper.ErrNoSuchJob) || s.CleaningUp)
	// Output:
	// expire-2026-10-01 succeeded
	// expire-2026-10-01 succeeded
	// expire-2026-10-08 succeeded
	// the first one is cleaned up: true
}

// TestNights starts the nightly job at one in the morning, over weeks in which clocks change. Each
// night must have one job, whose ID contains the date. A repeated start must return the same job.
func TestNights(t *testing.T) {
	t.Parallel()
	zone, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		t.Skip("no time zones are installed: ", err)
	}
	mappertest.Run(t, []mapper.AnyMapper{DeleteSessions}, nil, func(t *testing.T, w *mappertest.Env) {
		for _, first := range []time.Time{time.Date(2026, 3, 26, 1, 0, 0, 0, zone),
			time.Date(2026, 10, 22, 1, 0, 0, 0, zone)} {
			for i := range 6 {
				due := time.Date(first.Year(), first.Month(), first.Day()+i, 1, 0, 0, 0, zone)
				for _, at := range []time.Time{due, due.UTC()} {
					job, err := startNightly(t.Context(), w.Engine, at, zone)
					if err != nil || job.ID != due.Format("expire-2006-01-02") {
						t.Errorf("the night of %v is the job %+v, %v", due, job, err)
						continue
					}
					s, err := job.Wait(t.Context())
					if err == nil {
						err = s.Err()
					}
					if err != nil {
						t.Error(err)
					}
				}
			}
		}
		jobs, _, err := w.Engine.JobsPage(t.Context(), nil, "")
		if err != nil || len(jobs) != 12 {
			t.Errorf("%d jobs, %v, want one for each of 12 nights", len(jobs), err)
		}
	})
}

// Export.

// A Bucket stores objects by name. Put replaces an earlier object of the same name.
type Bucket interface {
	Put(ctx context.Context, name string, content []byte) error
}

func export(bucket Bucket) *mapper.Mapper[mapper.NoParams] {
	return mapper.Visit("export-teams", func(ctx context.Context, t *mapper.Entity[Team], _ mapper.NoParams) error {
		content, err := json.Marshal(t.Value)
		if err != nil {
			return mapper.Permanent(err)
		}
		// The function may run twice for an entity: its object has the same name and content then.
		name := sha256.Sum256([]byte(t.Key.Encode()))
		return bucket.Put(ctx, "teams/"+hex.EncodeToString(name[:])+".json", content)
	})
}

func startExport(
	ctx context.Context, m *mapper.Engine, export *mapper.Mapper[mapper.NoParams], at time.Time,
) (*mapper.Job, error) {
	return export.Start(ctx, m, mapper.Query{
		Kind:     "Team",
		ReadTime: at, // all entities in their state at that time
	}, mapper.NoParams{}, &mapper.StartOptions{ID: "export-" + at.UTC().Format("20060102-150405")})
}

func Example_export() {
	ctx := context.Background()
	var bucket memory
	exportTeams := export(&bucket)
	client, m, stop := engine(ctx, exportTeams)
	defer stop()
	for _, seats := range []int{3, 11, 20} {
		put(client, datastore.IncompleteKey("Team", nil), &Team{Seats: seats})
	}
	job, err := startExport(ctx, m, exportTeams, time.Now())
	s := wait(ctx, job, err)
	fmt.Println(s.State, s.Processed, "exported,", len(bucket.objects), "objects")
	// Output: succeeded 3 exported, 3 objects
}

// Call a service that takes batches.

type Address struct {
	Text     string
	Position datastore.GeoPoint // new
}

// A Geocoder finds up to 100 addresses in one request. Each has a position or an error.
type Geocoder interface {
	Find(ctx context.Context, texts []string) ([]datastore.GeoPoint, []error, error)
}

func geocode(service Geocoder) *mapper.Mapper[mapper.NoParams] {
	return mapper.UpdateBatches("geocode", 100,
		func(ctx context.Context, batch []*mapper.Entity[Address], _ mapper.NoParams) error {
			var texts []string
			for _, a := range batch {
				texts = append(texts, a.Value.Text)
			}
			positions, wrong, err := service.Find(ctx, texts)
			if err != nil {
				return mapper.RetryAfter(err, time.Second) // the request: it is repeated
			}
			for i, a := range batch {
				if wrong[i] != nil {
					a.Fail(mapper.Permanent(wrong[i])) // this address only
					continue
				}
				a.Value.Position = positions[i]
			}
			return nil
		})
}

func Example_batches() {
	ctx := context.Background()
	var service world
	m := geocode(&service)
	client, e, stop := engine(ctx, m)
	defer stop()
	for _, text := range []string{"1 Main Street", "nowhere", "2 Main Street"} {
		put(client, datastore.IncompleteKey("Address", nil), &Address{Text: text})
	}
	job, err := m.Start(ctx, e, mapper.Query{Kind: "Address"}, mapper.NoParams{}, nil)
	s := wait(ctx, job, err)
	found, err := client.Count(ctx, datastore.NewQuery("Address").FilterField("Position", ">",
		datastore.GeoPoint{Lat: 1}))
	fmt.Println(s.State, found, "found,", s.Failures, "failed,", service.requests.Load(), "requests,", err)
	// Output: succeeded with failures 2 found, 1 failed, 1 requests, <nil>
}

// Helpers of the recipes.

type memory struct {
	mu      sync.Mutex
	objects map[string][]byte
}

func (m *memory) Put(_ context.Context, name string, content []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.objects == nil {
		m.objects = make(map[string][]byte)
	}
	m.objects[name] = content
	return nil
}

// A world is a Geocoder that finds all addresses except "nowhere".
type world struct{ requests atomic.Int64 }

func (w *world) Find(_ context.Context, texts []string) ([]datastore.GeoPoint, []error, error) {
	w.requests.Add(1)
	positions, wrong := make([]datastore.GeoPoint, len(texts)), make([]error, len(texts))
	for i, text := range texts {
		if positions[i] = (datastore.GeoPoint{Lat: 48, Lng: 16}); text == "nowhere" {
			wrong[i] = errors.New("no such address")
		}
	}
	return positions, wrong, nil
}

// engine returns an engine on the embedded emulators.
func engine(
	ctx context.Context, mappers ...mapper.AnyMapper,
) (client *datastore.Client, m *mapper.Engine, stop func()) {
	e, err := emulator.Start(nil)
	if err != nil {
		log.Fatal(err)
	}
	if client, err = e.DatastoreClient(ctx, "example"); err != nil {
		log.Fatal(err)
	}
	taskClient, err := e.TasksClient(ctx)
	if err != nil {
		log.Fatal(err)
	}
	const location = "projects/example/locations/local"
	if _, err := taskClient.CreateQueue(ctx, &cloudtaskspb.CreateQueueRequest{Parent: location,
		Queue: &cloudtaskspb.Queue{Name: location + "/queues/mapper"}}); err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	server := httptest.NewServer(mux)
	queue, err := tasks.NewQueue(taskClient, location+"/queues/mapper", server.URL+"/mapper/",
		&tasks.Options{InsecureSkipVerify: true})
	if err != nil {
		log.Fatal(err)
	}
	if m, err = mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: mappers}); err != nil {
		log.Fatal(err)
	}
	mux.Handle("/mapper/", m.Handler())
	return client, m, func() {
		server.Close()
		taskClient.Close()
		client.Close()
		e.Close()
	}
}

func put(client *datastore.Client, key *datastore.Key, src any) {
	if _, err := client.Put(context.Background(), key, src); err != nil {
		log.Fatal(err)
	}
}

func wait(ctx context.Context, job *mapper.Job, err error) *mapper.Status {
	if err != nil {
		log.Fatal(err)
	}
	s, err := job.Wait(ctx)
	if err == nil && s.State != mapper.StateSucceededWithFailures { // which an example may have
		err = s.Err()
	}
	if err != nil {
		log.Fatal(err)
	}
	return s
}
