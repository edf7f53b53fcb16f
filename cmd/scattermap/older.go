package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// refusedName matches the jobs API's error about an unknown field of a body or an unknown parameter
// of a URL. This program makes both, so the service is older than the program. An unknown parameter
// of a mapper is the user's mistake, and its error has "params:" before "unknown field".
var refusedName = regexp.MustCompile(`^(?:the body is not [a-z -]+: unknown field|unknown parameter) "([^"]+)"`)

// older returns the error for an answer which shows that the service is older than this program:
// the service does not know the request, or a part of it. For other answers it returns nil.
func (s *service) older(code int, text []byte) error {
	var answer struct{ Error string }
	if json.Unmarshal(text, &answer) != nil {
		return nil
	}
	said := answer.Error
	switch {
	case code == http.StatusNotFound && strings.HasPrefix(said, "there is no such path"),
		code == http.StatusMethodNotAllowed && strings.HasPrefix(said, "this path has only the methods"):
		return s.unknown("this request", "")
	case code != http.StatusBadRequest:
		return nil
	}
	refused := refusedName.FindStringSubmatch(said)
	if refused == nil {
		return nil
	}
	switch flag := s.sentBy(refused[1]); flag {
	case "":
		return s.unknown(fmt.Sprintf("%q", refused[1]), "")
	case "dry-run": // without the flag, the job would write
		return s.unknown("--"+flag, "")
	default:
		return s.unknown("--"+flag, fmt.Sprintf(", or leave --%s out if you can do without it", flag))
	}
}

// unknown returns an error that says what the service does not know. The parameter otherwise says
// what the user can do in place of deploying a newer scattermap; it may be empty.
func (s *service) unknown(what, otherwise string) error {
	return fmt.Errorf("the service at %s is older than this command line, and does not know %s: deploy it with a "+
		"newer scattermap%s", s.address, what, otherwise)
}

// otherFlags has the flags that send a field or parameter of another name.
var otherFlags = map[string]string{"all": "all-queues", "read-time": "at", "entities": "rate", "filters": "filter",
	"start": "filter", "end": "filter", "ancestor": "filter"}

// index matches the index of an element in a field's name.
var index = regexp.MustCompile(`\[\d+\]`)

// sentBy returns the flag of the command line that sends a field or parameter, or "" if the command
// line has none.
func (s *service) sentBy(name string) string {
	if s.flags == nil {
		return ""
	}
	words := strings.Split(strings.ReplaceAll(index.ReplaceAllString(name, ""), "_", "-"), ".")
	var candidates []string
	for _, word := range append(slices.Clone(words), strings.Join(words, "-")) {
		word = strings.TrimSuffix(word, "-ns")
		candidates = append(candidates, word, otherFlags[word])
	}
	slices.Reverse(candidates) // the whole name comes first, and then its last word
	for _, flag := range candidates {
		if s.flags.Changed(flag) {
			return flag
		}
	}
	return ""
}
