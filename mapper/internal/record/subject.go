package record

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Subject is what is forgotten: mapper.Subject has the meaning of its fields.
type Subject struct {
	Namespace  string
	Everywhere bool
	Words      []string
}

// Mentions reports whether properties hold something of the subject: a key in its namespace, or a text that has the
// name of that, as a word, or one of its words. What is compressed is looked into, and so are keys that are encoded in
// texts.
func (s Subject) Mentions(properties []datastore.Property) bool {
	for _, p := range properties {
		if s.inValue(p.Value) {
			return true
		}
	}
	return false
}

func (s Subject) inValue(v any) bool {
	switch v := v.(type) {
	case string:
		return s.InText(v)
	case []byte:
		text, err := tally.Unpack(v)
		if err != nil { // it is none of ours
			text = v
		}
		return s.InJSON(text)
	case *datastore.Key:
		return s.InKey(v)
	case *datastore.Entity:
		return v != nil && (s.InKey(v.Key) || s.Mentions(v.Properties))
	case []any:
		for _, each := range v {
			if s.inValue(each) {
				return true
			}
		}
	}
	return false
}

// InJSON reports whether a text of a JSON document mentions the subject, or the document does, if it is none. A name in a
// stored path is written after an "n", see path.
func (s Subject) InJSON(document []byte) bool {
	for d := json.NewDecoder(bytes.NewReader(document)); ; {
		token, err := d.Token()
		switch text, ok := token.(string); {
		case errors.Is(err, io.EOF):
			return false
		case err != nil:
			return s.InText(string(document))
		case ok && (s.InText(text) || s.InText(strings.TrimPrefix(text, "n"))):
			return true
		}
	}
}

// InJob reports whether the record of a job mentions the subject: what it is about, is called and has counted, and what
// was said of it. Names that a program or an operator gives, of mappers, queues and settings, do not count.
func (s Subject) InJob(j *Job) bool {
	for _, text := range []string{j.Error, j.Trouble, j.RetryOf} {
		if s.InText(text) {
			return true
		}
	}
	if s.IsAbout(j) {
		return true
	}
	acts, err := j.History.Acts()
	if err != nil && s.InText(string(j.History)) {
		return true
	}
	for _, a := range acts {
		if s.InText(a.What) || s.InText(a.By) || s.InText(a.Why) {
			return true
		}
	}
	totals, err := tally.Unpack(j.Totals)
	return err != nil || s.InJSON(totals)
}

// IsAbout reports whether a job is about the subject: by its query, its parameters, its ID, its schedule or its undo.
func (s Subject) IsAbout(j *Job) bool {
	for _, text := range []string{j.ID, j.Schedule, j.Undo} {
		if s.InText(text) {
			return true
		}
	}
	return s.InJSON(j.Query) || s.InJSON(j.Params)
}

// InKey reports whether a key is in the namespace of the subject, or has a name that mentions it.
func (s Subject) InKey(k *datastore.Key) bool {
	if k == nil {
		return false
	}
	if s.Namespace != "" && k.Namespace == s.Namespace {
		return true
	}
	for ; k != nil; k = k.Parent {
		if s.inPlain(k.Name) {
			return true
		}
	}
	return false
}

// encodedKey is what the text of a datastore.Key can be.
var encodedKey = regexp.MustCompile(`[A-Za-z0-9_-]{10,}`)

// InText reports whether a text mentions the subject.
func (s Subject) InText(text string) bool {
	if s.inPlain(text) {
		return true
	}
	for _, word := range encodedKey.FindAllString(text, -1) {
		if k, err := datastore.DecodeKey(word); err == nil && s.InKey(k) {
			return true
		}
	}
	return false
}

func (s Subject) inPlain(text string) bool {
	if s.Namespace != "" && hasWord(text, s.Namespace) {
		return true
	}
	for _, w := range s.Words {
		if hasWord(text, w) {
			return true
		}
	}
	return false
}

// hasWord reports whether a text has a word with no letter or digit before or behind it.
func hasWord(text, word string) bool {
	for i := 0; ; {
		at := strings.Index(text[i:], word)
		if at < 0 {
			return false
		}
		at += i
		end := at + len(word)
		begins, ends := at == 0 || !alphanumeric(text[at-1]), end == len(text) || !alphanumeric(text[end])
		if begins && ends {
			return true
		}
		i = at + 1
	}
}

func alphanumeric(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
