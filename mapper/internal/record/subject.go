package record

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Subject is the person or thing whose data an erasure removes from scattermap's records.
// mapper.Subject explains the fields.
type Subject struct {
	Namespace  string
	Everywhere bool
	Words      []string
	Numbers    []int64
	Times      []time.Time

	// Others has the names of other namespaces. Inside one of these names, as in acme-eu, the name
	// of Namespace is no mention of it.
	Others map[string]bool
}

// empty reports whether the subject has no words, numbers, times or namespace to search for.
func (s Subject) empty() bool {
	return s.Namespace == "" && !s.Everywhere && len(s.Words)+len(s.Numbers)+len(s.Times) == 0
}

// ownProperties lists, by kind, the properties of scattermap's records that have no values from
// users or operators. They have settings, states, random numbers, and names from the program: of
// mappers, kinds and queues. All other properties are searched for a subject, even unknown ones
// that other builds have written.
var ownProperties = map[string][]string{
	JobKind: {"mapper", "queue", "incarnation", "state", "listed", "retires", "splitting", "rate", "rate_then",
		"budget",
		"cleaning", "closing", "begun", "seen_task", "deaths"},
	RangeKind:    {"incarnation", "id", "state", "keys", "seal", "single", "begun", "seen_task", "deaths"},
	BatchKind:    {"incarnation", "page"},
	DraftKind:    {"from", "rate"},
	ScheduleKind: {"outcome", "slots"},
	SlotKind:     {"mapper", "kind", "incarnation"},
}

// givenValues lists, by kind, the properties with numbers and times from users. Numbers and times
// in all other properties are bookkeeping. They are not searched for a subject.
var givenValues = map[string][]string{
	JobKind:   {"params"},
	RangeKind: {"start", "end", "samples"},
}

// InRecord reports whether the properties of one of scattermap's records mention the subject. A
// mention is one of:
//
//   - a key in its namespace, or with a name or an ID of it
//   - a text with its namespace, or one of its words or numbers, as a whole word
//   - a number or a time of it that users gave
//
// Compressed values are unpacked, and keys that are encoded in texts are decoded. The record's own
// key is not searched.
func (s Subject) InRecord(kind string, properties []datastore.Property) bool {
	for _, p := range properties {
		if slices.Contains(ownProperties[kind], p.Name) {
			continue
		}
		document, _ := p.Value.([]byte)
		var in bool
		switch property := kind + "." + p.Name; property {
		case JobKind + ".query":
			in = s.inQuery(document)
		case JobKind + ".history":
			in = s.inFields(document, "at", "to")
		case JobKind + ".totals":
			in = s.inTotals(document)
		case ScheduleKind + ".past":
			in = s.inFields(document, "at", "outcome")
		case ScheduleKind + ".queued":
			in = s.inTick(document)
		default:
			in = s.inValue(p.Value, slices.Contains(givenValues[kind], p.Name))
		}
		if in {
			return true
		}
	}
	return false
}

// inValue reports whether a value mentions the subject. The argument given says that the value
// comes from a user. Otherwise numbers and times are bookkeeping and do not count.
func (s Subject) inValue(v any, given bool) bool {
	switch v := v.(type) {
	case string:
		return s.InText(v)
	case []byte:
		text, err := tally.Unpack(v)
		if err != nil { // not in scattermap's packed format
			text = v
		}
		return s.inJSON(text, given)
	case int64:
		return given && s.isNumber(strconv.FormatInt(v, 10))
	case time.Time:
		return given && s.isTime(v)
	case *datastore.Key:
		return s.InKey(v)
	case *datastore.Entity:
		return v != nil && (s.InKey(v.Key) || slices.ContainsFunc(v.Properties, func(p datastore.Property) bool {
			return s.inValue(p.Value, given)
		}))
	case []any:
		return slices.ContainsFunc(v, func(each any) bool { return s.inValue(each, given) })
	}
	return false
}

// inJSON reports whether a JSON document mentions the subject in a text. If given is set, the
// document comes from a user, and its numbers and times count, too. A document that is not valid
// JSON is searched as a text.
//
// In a stored path of a key, a name starts with "n" and an ID with "i", see path in package
// undolog.
func (s Subject) inJSON(document []byte, given bool) bool {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	for {
		token, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return false
		case err != nil:
			return s.InText(string(document))
		}
		switch v := token.(type) {
		case json.Number:
			if given && s.isNumber(v.String()) {
				return true
			}
		case string:
			id, isID := strings.CutPrefix(v, "i")
			at, err := time.Parse(time.RFC3339Nano, v)
			if s.InText(v) || s.InText(strings.TrimPrefix(v, "n")) || isID && s.isNumber(id) ||
				given && err == nil && s.isTime(at) {
				return true
			}
		}
	}
}

// inQuery reports whether a query, as JSON, mentions the subject. Numbers and times count only in
// filters. The filter that selects a share of the keys is not searched.
func (s Subject) inQuery(document []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(document, &fields) != nil {
		return s.inJSON(document, true)
	}
	for name, text := range fields {
		var in bool
		switch name {
		case "read_time":
		case "filters":
			in = s.inFilters(text)
		case "namespace", "namespaces":
			in = s.inNamespaces(text)
		default:
			in = s.inJSON(text, false)
		}
		if in {
			return true
		}
	}
	return false
}

// inNamespaces reports whether a name of a namespace, or one of a list of names, as JSON, is the
// subject's namespace or mentions the rest of the subject.
func (s Subject) inNamespaces(document []byte) bool {
	var one string
	var all []string
	if json.Unmarshal(document, &one) == nil {
		all = []string{one}
	} else if json.Unmarshal(document, &all) != nil {
		return s.inJSON(document, false)
	}
	return slices.ContainsFunc(all, s.isNamespace)
}

// isNamespace reports whether the name of a namespace is the subject's namespace, or mentions the
// rest of the subject.
func (s Subject) isNamespace(name string) bool {
	if name != "" && name == s.Namespace {
		return true
	}
	s.Namespace = ""
	return s.InText(name)
}

func (s Subject) inFilters(document []byte) bool {
	type filter struct {
		Property string          `json:"property"`
		Op       string          `json:"op"`
		Value    json.RawMessage `json:"value"`
	}
	var all []filter
	if json.Unmarshal(document, &all) != nil {
		return s.inJSON(document, true)
	}
	return slices.ContainsFunc(all, func(f filter) bool {
		return f.Op != "share" && (s.InText(f.Property) || s.inJSON(f.Value, true))
	})
}

// inTick reports whether the JSON of a waiting tick (a planned run of a schedule) mentions the
// subject.
func (s Subject) inTick(document []byte) bool {
	var fields map[string]json.RawMessage
	if json.Unmarshal(document, &fields) != nil {
		return s.inJSON(document, true)
	}
	for name, text := range fields {
		var in bool
		switch name {
		case "at":
		case "query":
			in = s.inQuery(text)
		default:
			in = s.inJSON(text, name == "params")
		}
		if in {
			return true
		}
	}
	return false
}

// inFields reports whether the JSON of a list of objects mentions the subject. It does not search
// the fields with the names in except.
func (s Subject) inFields(document []byte, except ...string) bool {
	var all []map[string]json.RawMessage
	if json.Unmarshal(document, &all) != nil {
		return s.inJSON(document, false)
	}
	for _, fields := range all {
		for name, text := range fields {
			if !slices.Contains(except, name) && s.inJSON(text, false) {
				return true
			}
		}
	}
	return false
}

// inTotals reports whether the stored totals of a job mention the subject, in a name of a counter
// or a namespace.
func (s Subject) inTotals(stored []byte) bool {
	sum, err := (&Job{Totals: stored}).RecordedTotals()
	if err != nil {
		return s.inValue(stored, false)
	}
	for name := range sum.Counters {
		if s.InText(name) {
			return true
		}
	}
	for name := range sum.Spaces {
		if namespace, kind, _ := strings.Cut(name, "/"); s.isNamespace(namespace) || s.InText(kind) {
			return true
		}
	}
	return false
}

// InJob reports whether a job's record mentions the subject: in its ID, query, parameters,
// counters, errors or history. Names of mappers, queues and settings do not count.
func (s Subject) InJob(j *Job) bool {
	properties, err := datastore.SaveStruct(j)
	return err != nil || s.InText(j.ID) || s.InRecord(JobKind, properties)
}

// IsAbout reports whether a job is about the subject, as its query, its parameters, its ID, its
// schedule or its undo say.
func (s Subject) IsAbout(j *Job) bool {
	return slices.ContainsFunc([]string{j.ID, j.Schedule, j.Undo}, s.InText) || s.inQuery(j.Query) ||
		s.inJSON(j.Params, true)
}

// InKey reports whether a key is in the subject's namespace, or has one of the subject's words or
// numbers as a name or an ID.
func (s Subject) InKey(k *datastore.Key) bool {
	if k == nil {
		return false
	}
	if s.Namespace != "" && k.Namespace == s.Namespace {
		return true
	}
	for ; k != nil; k = k.Parent {
		if s.InText(k.Name) || k.ID != 0 && s.isNumber(strconv.FormatInt(k.ID, 10)) {
			return true
		}
	}
	return false
}

// encodedKey matches words that may be encoded keys (datastore.Key.Encode).
var encodedKey = regexp.MustCompile(`[A-Za-z0-9_-]{10,}`)

// mostCuts is the largest number of parts of a word that inEncoded tries to decode as keys.
const mostCuts = 256

// InText reports whether a text mentions the subject: directly, escaped as in URLs and JSON, or in
// an encoded key.
func (s Subject) InText(text string) bool {
	return slices.ContainsFunc(readings(text), func(reading string) bool {
		return s.inPlain(reading) || slices.ContainsFunc(encodedKey.FindAllString(reading, -1), s.inEncoded)
	})
}

// escapes matches escaped characters in URLs, JSON, and quoted texts of Go.
var escapes = regexp.MustCompile(`(?:%[0-9A-Fa-f]{2})+|(?:\\u[0-9A-Fa-f]{4})+|\\x[0-9A-Fa-f]{2}|` +
	`\\U[0-9A-Fa-f]{8}|\\[^u]`)

// mostEscapes is how many times a text may be escaped, such as a JSON document in a quoted answer.
const mostEscapes = 4

// readings returns a text unchanged, and without the escapes of URLs, JSON and quoted texts. In the
// query of a URL, but not in its path, a '+' is a space.
func readings(text string) []string {
	all := []string{text}
	if strings.Contains(text, "+") {
		all = append(all, strings.ReplaceAll(text, "+", " "))
	}
	for _, reading := range all {
		for n := 0; n < mostEscapes && strings.ContainsAny(reading, `%\`); n++ {
			reading = escapes.ReplaceAllStringFunc(reading, unescaped)
			all = append(all, reading)
		}
	}
	return all
}

// unescaped returns the characters for which an escape stands.
func unescaped(escape string) (plain string) {
	switch {
	case escape[0] == '%':
		b, _ := hex.DecodeString(strings.ReplaceAll(escape, "%", "")) // always pairs of digits
		return string(b)
	case escape[1] == 'u': // a character may need two of these
		_ = json.Unmarshal([]byte(`"`+escape+`"`), &plain) // always valid
		return plain
	}
	plain, err := strconv.Unquote(`"` + escape + `"`)
	if err != nil { // such as \/ in JSON
		return escape[1:]
	}
	return plain
}

// inEncoded reports whether a word contains an encoded key that mentions the subject. The word may
// have more text before and after the key, separated by '-' or '_'.
func (s Subject) inEncoded(word string) bool {
	var begins, ends []int
	for i := range len(word) {
		if word[i] == '-' || word[i] == '_' {
			begins, ends = append(begins, i+1), append(ends, i)
		}
	}
	begins, ends = append([]int{0}, begins...), append(ends, len(word))
	slices.Reverse(ends)
	cuts := 0
	for _, end := range ends { // the longest part from each start is tried first
		for _, begin := range begins {
			if end-begin < 10 {
				continue
			}
			if cuts++; cuts > mostCuts {
				return false
			}
			if k, _ := datastore.DecodeKey(word[begin:end]); s.InKey(k) { // k is nil if the part is no encoded key
				return true
			}
		}
	}
	return false
}

func (s Subject) inPlain(text string) bool {
	if s.Namespace != "" && s.namesSpace(text) {
		return true
	}
	for _, w := range s.Words {
		quoted := strconv.Quote(w) // messages contain values in this form
		if hasWord(text, w) || hasWord(text, quoted[1:len(quoted)-1]) {
			return true
		}
	}
	for _, n := range s.Numbers {
		if hasWord(text, strconv.FormatInt(n, 10)) {
			return true
		}
	}
	for _, t := range s.Times {
		if hasWord(text, t.UTC().Format(time.RFC3339Nano)) {
			return true
		}
	}
	return false
}

// namesSpace reports whether a text contains the name of the subject's namespace as a word. A name
// without a letter, such as 0 or 2026, is also a part of dates, IDs and counts. So it must be the
// whole text, or in quotes or brackets, as in names.Key.
func (s Subject) namesSpace(text string) bool {
	if text == s.Namespace {
		return true
	}
	number := !strings.ContainsFunc(s.Namespace, unicode.IsLetter)
	for begin, end := range words(text, s.Namespace) {
		if number && (begin == 0 || end == len(text) || !strings.ContainsRune("\"'`[", rune(text[begin-1])) ||
			!strings.ContainsRune("\"'`]\\", rune(text[end]))) {
			continue
		}
		if !s.inOther(text, begin, end) {
			return true
		}
	}
	return false
}

// longestName is the length of the longest name of a namespace.
const longestName = 100

// inOther reports whether the name of the subject's namespace, which a text has at this place, is
// a part of another namespace's name there.
func (s Subject) inOther(text string, begin, end int) bool {
	named := func(i int) bool { return alphanumeric(text[i]) || strings.IndexByte("._-", text[i]) >= 0 }
	for from := begin; from >= 0 && end-from <= longestName && (from == begin || named(from)); from-- {
		if from > 0 && alphanumeric(text[from-1]) {
			continue
		}
		for to := end; to-from <= longestName && (to == end || named(to-1)); to++ {
			last := to == len(text)
			if (last || !alphanumeric(text[to])) && s.Others[text[from:to]] {
				return true
			}
			if last {
				break
			}
		}
	}
	return false
}

// isNumber reports whether a number in JSON is one of the subject's numbers, or one of its words.
func (s Subject) isNumber(text string) bool {
	if slices.Contains(s.Words, text) {
		return true
	}
	n, err := strconv.ParseInt(text, 10, 64)
	return err == nil && slices.Contains(s.Numbers, n)
}

func (s Subject) isTime(t time.Time) bool { return slices.ContainsFunc(s.Times, t.Equal) }

// hasWord reports whether a text contains word with no letter or digit directly before or after it.
func hasWord(text, word string) bool {
	for range words(text, word) {
		return true
	}
	return false
}

// words returns where a text contains word with no letter or digit directly before or after it.
func words(text, word string) iter.Seq2[int, int] {
	return func(yield func(begin, end int) bool) {
		for i := 0; ; {
			at := strings.Index(text[i:], word)
			if at < 0 || word == "" {
				return
			}
			at += i
			end := at + len(word)
			begins, ends := at == 0 || !alphanumeric(text[at-1]), end == len(text) || !alphanumeric(text[end])
			if begins && ends && !yield(at, end) {
				return
			}
			i = at + 1
		}
	}
}

func alphanumeric(b byte) bool {
	return '0' <= b && b <= '9' || 'a' <= b && b <= 'z' || 'A' <= b && b <= 'Z'
}
