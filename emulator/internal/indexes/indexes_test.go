package indexes

import (
	"strings"
	"testing"

	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below emulator/ must know its flags
)

func asc(names ...string) []Property {
	var all []Property
	for _, n := range names {
		all = append(all, Property{Name: n})
	}
	return all
}

func desc(name string) Property { return Property{name, true} }

// TestServe checks which shapes need a composite index, and which one.
func TestServe(t *testing.T) {
	set, err := Parse([]byte(`
indexes:
- kind: Task
  properties:
  - name: done
  - name: priority
    direction: desc
- kind: Task
  properties:
  - name: owner
  - name: priority
    direction: desc
- kind: Task
  ancestor: yes
  properties:
  - name: created
- kind: Log
  ancestor: no
  properties:
  - {name: __key__, direction: desc}
`))
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		shape   Shape
		missing string // first property of the missing index
	}{
		"kind":                    {Shape{Kind: "Task"}, ""},
		"equalities":              {Shape{Kind: "Task", Equal: []string{"a", "b"}}, ""},
		"equalities and ancestor": {Shape{Kind: "Task", Ancestor: true, Equal: []string{"a", "b"}}, ""},
		"one order":               {Shape{Kind: "Task", Orders: asc("a")}, ""},
		"one order, descending":   {Shape{Kind: "Task", Orders: []Property{desc("a")}}, ""},
		"order by key":            {Shape{Kind: "Task", Equal: []string{"a"}, Orders: asc(keyProperty)}, ""},
		"descending order by key": {Shape{Kind: "Task", Orders: []Property{desc(keyProperty)}}, "__key__"},
		"that with its index":     {Shape{Kind: "Log", Orders: []Property{desc(keyProperty)}}, ""},
		"two orders":              {Shape{Kind: "Task", Orders: asc("a", "b")}, "a"},
		"equality and order": {Shape{Kind: "Task", Equal: []string{"done"},
			Orders: []Property{desc("priority")}}, ""},
		"in the other direction": {Shape{Kind: "Task", Equal: []string{"done"}, Orders: asc("priority")}, "done"},
		"merged from two indexes": {Shape{Kind: "Task", Equal: []string{"owner", "done"},
			Orders: []Property{desc("priority")}}, ""},
		"one equality too many": {Shape{Kind: "Task", Equal: []string{"owner", "place"},
			Orders: []Property{desc("priority")}}, "owner"},
		"ancestor and order":          {Shape{Kind: "Task", Ancestor: true, Orders: asc("created")}, ""},
		"order without that ancestor": {Shape{Kind: "Task", Orders: asc("created", "x")}, "created"},
		"another kind": {Shape{Kind: "Other", Equal: []string{"done"},
			Orders: []Property{desc("priority")}}, "done"},
	} {
		_, missing := set.Serve(c.shape)
		ok := missing == nil
		switch {
		case ok != (c.missing == ""):
			t.Errorf("%s: served %v", name, ok)
		case !ok && missing.Properties[0].Name != c.missing:
			t.Errorf("%s: missing %+v, want one that starts with %s", name, missing, c.missing)
		}
		if ok {
			continue
		}
		// With the index that was reported as missing, the query is served.
		added, err := Parse([]byte("indexes:\n" + missing.String()))
		if err != nil {
			t.Errorf("%s: the recommended index does not parse: %v\n%s", name, err, missing)
		} else if _, missing := added.Serve(c.shape); missing != nil {
			t.Errorf("%s: the recommended index does not serve it:\n%s", name, missing)
		}
	}
	var none *Set
	if _, missing := none.Serve(Shape{Kind: "Task", Orders: asc("a", "b")}); missing != nil {
		t.Error("no set at all enforces something")
	}
}

func TestBadFiles(t *testing.T) {
	for contents, want := range map[string]string{
		"indexes: 5": "index.yaml",
		"indexes:\n- kind: A\n  properties:\n  - name: a\n    direction: up": "direction asc or desc",
		"indexes:\n- properties:\n  - name: a":                               "needs a kind",
		"indexes:\n- kind: A":                                                "needs a kind and properties",
		"indexes:\n- kind: A\n  ancestor: maybe\n  properties:\n  - name: a": "ancestor is maybe",
		"indices: []": "indices",
		"indexes:\n- kind: A\n  properties:\n  - name: a\n- kind: B\n  properties:\n  - nome: b": "nome",
	} {
		if _, err := Parse([]byte(contents)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one with %q", contents, err, want)
		}
	}
	for _, contents := range []string{"", "\n", "indexes: []", "# nothing\n"} {
		if _, err := Parse([]byte(contents)); err != nil {
			t.Errorf("%q: %v", contents, err)
		}
	}
}
