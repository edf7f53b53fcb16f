package protocol_test

import (
	"context"
	"errors"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper"
)

// The code below equals the code of mapper/recipes_test.go, as TestRecipesOfTheDocs checks.

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

type Card struct {
	Email  string
	Points int64
}

var MergeCards = mapper.Update("merge-cards",
	func(ctx context.Context, c *mapper.Entity[Card], _ mapper.NoParams) error {
		first := datastore.NameKey("Card", strings.ToLower(c.Value.Email), nil)
		if c.Key.Equal(first) {
			return mapper.Skip // the one that stays
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

var MoveTeams = mapper.Update("move-teams",
	func(_ context.Context, t *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
		to := datastore.NameKey("Club", fmt.Sprint("team ", t.Key.ID), nil)
		if slices.ContainsFunc(t.Value, func(p datastore.Property) bool { return p.Name == "MovedTo" }) {
			return mapper.Skip // already moved
		}
		t.InsertStored(to, t.Stored())
		t.Value = datastore.PropertyList{{Name: "MovedTo", Value: to}} // all that stays
		return nil
	})

var MovePlayers = mapper.Update("move-players",
	func(ctx context.Context, p *mapper.Entity[datastore.PropertyList], _ mapper.NoParams) error {
		var parent struct{ MovedTo *datastore.Key }
		if err := p.Get(ctx, p.Key.Parent, &parent); err != nil {
			return err
		}
		if parent.MovedTo == nil {
			return mapper.Skip // a club, or a team that stays
		}
		to := *p.Key
		to.Parent = parent.MovedTo
		p.InsertStored(&to, p.Stored())
		p.Delete(p.Key)
		return nil
	})

// TestRecipesOfTheDocs checks that the functions above, which TestRecipeSimulation runs, equal the
// ones in mapper/recipes_test.go. docs/recipes.md shows those.
func TestRecipesOfTheDocs(t *testing.T) {
	shown, run := declarations(t, "../recipes_test.go"), declarations(t, "recipes_test.go")
	n := 0
	for name, code := range run {
		if !token.IsExported(name) || strings.HasPrefix(name, "Test") {
			continue
		}
		if n++; shown[name] != code {
			t.Errorf("%s is\n%s\nand docs/recipes.md shows\n%s", name, code, shown[name])
		}
	}
	if n != 8 {
		t.Errorf("%d declarations", n)
	}
}

// declarations returns the source code of each declaration in a file, by name.
func declarations(t *testing.T, file string) map[string]string {
	t.Helper()
	set := token.NewFileSet()
	parsed, err := parser.ParseFile(set, file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	all := make(map[string]string)
	ast.Inspect(parsed, func(n ast.Node) bool {
		var name string
		switch n := n.(type) {
		case *ast.TypeSpec:
			name = n.Name.Name
		case *ast.ValueSpec:
			name = n.Names[0].Name
		default:
			return true
		}
		var code strings.Builder
		if err := format.Node(&code, set, n); err != nil {
			t.Fatal(err)
		}
		all[name] = code.String()
		return false
	})
	return all
}
