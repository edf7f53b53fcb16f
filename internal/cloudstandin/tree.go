package cloudstandin

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
)

// A Tree describes the commands of gcloud, with their flags and arguments. The program tree.py
// extracts it from gcloud's own parser.
type Tree struct {
	Version string `json:"version"`
	Global  []Node `json:"global"` // flags that every command has
	// Commands has the flags and arguments of each command, by its path, such as "tasks queues
	// create".
	Commands map[string][]Node `json:"commands"`
}

// A Node is a flag, a positional argument, or a group of nodes.
type Node struct {
	Flags      []string `json:"flags,omitempty"`
	Positional string   `json:"positional,omitempty"`
	Group      []Node   `json:"group,omitempty"`
	// Required says that the node must be given. Inside a group, this applies only if another node
	// of the group is given.
	Required bool `json:"required,omitempty"`
	Mutex    bool `json:"mutex,omitempty"` // Mutex says that at most one node of this group may be given.
	// Nargs is the number of values, as in Python's argparse: "0" for a flag without a value, "?"
	// for at most one, "*" for any number, "+" for at least one.
	Nargs   string   `json:"nargs,omitempty"`
	Choices []string `json:"choices,omitempty"`
}

//go:embed tree.json
var treeFile []byte

// Gcloud returns the description of gcloud's commands. It is embedded in this package.
var Gcloud = sync.OnceValue(func() *Tree {
	var t Tree
	if err := json.Unmarshal(treeFile, &t); err != nil {
		panic(err) // the embedded file is valid
	}
	return &t
})

// A Call is a parsed command line of gcloud.
type Call struct {
	Path string // the path of the command, such as "tasks queues create"
	// Flags has the value of each given flag, by the flag's first name. A flag without a value has
	// the value "true" or "false".
	Flags       map[string]string
	Positionals []string
}

// Get returns the value of a flag, or "" if the flag is not given.
func (c Call) Get(flag string) string { return c.Flags[flag] }

// Positional returns the positional argument with an index, or "" if there are fewer.
func (c Call) Positional(i int) string {
	if i < len(c.Positionals) {
		return c.Positionals[i]
	}
	return ""
}

// chooses reports whether a value is one of the choices of a flag.
func (n Node) chooses(value string) bool {
	return len(n.Choices) == 0 || slices.Contains(n.Choices, strings.ToLower(value)) ||
		slices.Contains(n.Choices, value)
}

// invertedFlag returns the flag that a name such as --no-quiet turns off, here --quiet. If there is
// no such flag, ok is false.
func invertedFlag(flags map[string]Node, name string) (flag string, ok bool) {
	inverted, ok := strings.CutPrefix(name, "--no-")
	n, known := flags["--"+inverted]
	if !ok || !known || n.Nargs != "0" {
		return "", false
	}
	return n.Flags[0], true
}

// Parse parses the arguments of gcloud as gcloud's own parser does. It returns an error for an
// unknown command, flag or choice, and for missing or mutually exclusive arguments. It does not
// check other values.
func (t *Tree) Parse(args []string) (Call, error) {
	c := Call{Flags: make(map[string]string)}
	nodes, rest, err := t.command(&c, args)
	if err != nil {
		return c, err
	}
	flags := make(map[string]Node)
	for _, n := range slices.Concat(nodes, t.Global) {
		index(flags, n)
	}
	for i := 0; i < len(rest); i++ {
		arg := rest[i]
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			c.Positionals = append(c.Positionals, arg)
			continue
		}
		name, value, has := strings.Cut(arg, "=")
		n, known := flags[name]
		if off, ok := invertedFlag(flags, name); ok && !known && !has {
			c.Flags[off] = "false"
			continue
		}
		switch {
		case !known:
			return c, c.errorf("unrecognized arguments: %s", arg)
		case n.Nargs == "0" && has:
			return c, c.errorf("argument %s: ignored explicit argument '%s'", name, value)
		case n.Nargs == "0":
			value = "true"
		case !has && (i+1 == len(rest) || strings.HasPrefix(rest[i+1], "--")):
			return c, c.errorf("argument %s: expected one argument", name)
		case !has:
			i++
			value = rest[i]
		}
		if !n.chooses(value) {
			return c, c.errorf("argument %s: Invalid choice: '%s'.\n\nValid choices are [%s].", name, value,
				strings.Join(n.Choices, ", "))
		}
		c.Flags[n.Flags[0]] = value
	}
	return c, c.check(nodes)
}

// command finds the command at the start of the arguments, and stores its path in c. It returns the
// command's flags and arguments as nodes, and the given arguments after its path.
func (t *Tree) command(c *Call, args []string) (nodes []Node, rest []string, err error) {
	var path []string
	for i, arg := range args {
		if strings.HasPrefix(arg, "-") {
			rest = append(rest, arg)
			continue
		}
		path = append(path, arg)
		c.Path = strings.Join(path, " ")
		if nodes, ok := t.Commands[c.Path]; ok {
			return nodes, append(rest, args[i+1:]...), nil
		}
		if !slices.ContainsFunc(slices.Collect(maps.Keys(t.Commands)),
			func(p string) bool { return strings.HasPrefix(p, c.Path+" ") }) {
			return nil, nil, fmt.Errorf("ERROR: (gcloud%s) Invalid choice: '%s'", dots(path[:len(path)-1]), arg)
		}
	}
	return nil, nil, fmt.Errorf("ERROR: (gcloud%s) Command name argument expected", dots(path))
}

func dots(path []string) string {
	if len(path) == 0 {
		return ""
	}
	return "." + strings.Join(path, ".")
}

func (c Call) errorf(format string, args ...any) error {
	return fmt.Errorf("ERROR: (gcloud%s) %s", dots(strings.Fields(c.Path)), fmt.Sprintf(format, args...))
}

func index(flags map[string]Node, n Node) {
	for _, f := range n.Flags {
		flags[f] = n
	}
	for _, m := range n.Group {
		index(flags, m)
	}
}

// check returns an error if a required node is not given, or if two mutually exclusive nodes are
// given.
func (c Call) check(nodes []Node) error {
	var least, most int
	var names []string
	var count func(nodes []Node, required bool)
	count = func(nodes []Node, required bool) {
		for _, n := range nodes {
			switch {
			case n.Group != nil:
				count(n.Group, required && n.Required)
			case n.Positional == "":
			case n.Nargs == "*" || n.Nargs == "...":
				most = 1 << 30
			case n.Nargs == "+":
				least, most = least+1, 1<<30
				names = append(names, n.Positional)
			default:
				most++
				if n.Nargs != "?" && (n.Required || required) {
					least++
					names = append(names, n.Positional)
				}
			}
		}
	}
	count(nodes, true)
	if given := len(c.Positionals); given < least {
		return c.errorf("argument %s: Must be specified.", strings.Join(names[given:], " "))
	} else if given > most {
		return c.errorf("unrecognized arguments: %s", strings.Join(c.Positionals[most:], " "))
	}
	for _, n := range nodes {
		if err := c.checkNode(n); err != nil {
			return err
		}
		if n.Required && n.Positional == "" && !c.there(n) {
			return c.errorf("argument %s: Must be specified.", n)
		}
	}
	return nil
}

// checkNode checks a nested group as check does, but only if at least one of the group's nodes is
// given.
func (c Call) checkNode(n Node) error {
	if n.Group == nil || !c.there(n) {
		return nil
	}
	var first *Node
	for i, m := range n.Group {
		there := c.there(m)
		if m.Required && !there && !n.Mutex && m.Positional == "" {
			return c.errorf("argument %s: Must be specified.", m)
		}
		if n.Mutex && there {
			if first != nil {
				return c.errorf("argument %s: At most one of %s | %s can be specified.", first, first, m)
			}
			first = &n.Group[i]
		}
		if err := c.checkNode(m); err != nil {
			return err
		}
	}
	return nil
}

// there reports whether a node, or a node inside it, is given. For a positional argument, it always
// returns true, because check counts these.
func (c Call) there(n Node) bool {
	if len(n.Flags) > 0 {
		_, ok := c.Flags[n.Flags[0]]
		return ok
	}
	if n.Positional != "" {
		return len(c.Positionals) > 0
	}
	return slices.ContainsFunc(n.Group, c.there)
}

// String returns a node's name in gcloud's error messages.
func (n Node) String() string {
	switch {
	case len(n.Flags) > 0:
		return n.Flags[0]
	case n.Positional != "":
		return n.Positional
	}
	var all []string
	for _, m := range n.Group {
		all = append(all, m.String())
	}
	return "(" + strings.Join(all, " ") + ")"
}
