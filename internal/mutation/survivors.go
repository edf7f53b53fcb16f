package mutation

import (
	_ "embed" // for the embedded list
	"fmt"
	"strings"
)

//go:embed survivors.txt
var survivors string

// Survivors returns the names of the mutants that tests need not find, with the reasons.
func Survivors() (map[string]string, error) {
	reasons := make(map[string]string)
	n := 0
	for line := range strings.Lines(survivors) {
		n++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, ok := strings.Cut(line, "\t")
		reason = strings.TrimSpace(reason)
		if !ok || reason == "" {
			return nil, fmt.Errorf("survivors.txt:%d: has to be a mutant's name, a tab and the reason", n)
		}
		if reasons[name] != "" {
			return nil, fmt.Errorf("survivors.txt:%d: %s is there twice", n, name)
		}
		reasons[name] = reason
	}
	return reasons, nil
}
