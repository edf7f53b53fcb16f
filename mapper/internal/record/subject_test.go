package record

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/undolog"
)

// TestSubjectInRecord checks that a subject is found in keys, texts, encoded keys and compressed
// values of a record.
func TestSubjectInRecord(t *testing.T) {
	alice := datastore.NameKey("Account", "alice@example.com", nil)
	inside := &datastore.Key{Kind: "Account", ID: 7, Namespace: "acme"}
	child := datastore.NameKey("Order", "1", alice)
	many := make([]*datastore.Key, 100) // this number of keys is stored compressed
	for i := range many {
		many[i] = datastore.IDKey("Account", int64(1+i), nil)
	}
	wrote := func(key *datastore.Key) []byte {
		return (&undolog.Wrote{Others: append([]*datastore.Key{key}, many...)}).Encode()
	}
	left := func(key *datastore.Key) []byte {
		r := &Range{Job: "j"}
		r.Leave([]undolog.Left{{Key: key, Why: "it was changed after the job wrote it"}})
		return r.Left
	}
	words, namespace := Subject{Words: []string{"alice@example.com"}}, Subject{Namespace: "acme"}
	spaced := Subject{Words: []string{"Zoë+Söhne & Co"}}
	for _, test := range []struct {
		name  string
		s     Subject
		value any
		want  bool
	}{
		{"a key", words, alice, true},
		{"a key in the namespace", namespace, inside, true},
		{"a key with an escaped name", words, datastore.NameKey("Account", "of-alice%40example.com", nil), true},
		{"a key whose name is an encoded key", words, datastore.NameKey("Index", alice.Encode(), nil), true},
		{"a key of another namespace", namespace, alice, false},
		{"an ancestor", words, child, true},
		{"an encoded key", words, "failed on " + child.Encode() + ".", true},
		{"an encoded key after a prefix", words, "undo-job_" + child.Encode(), true},
		{"an encoded key before an end", words, "a-" + child.Encode() + "-b_c", true},
		{"an encoded key of another one after a prefix", words, "job-" + inside.Encode(), false},
		{"so many words", words, strings.Repeat("Eh-", 10_000), false},
		{"a text", words, "no mail to alice@example.com", true},
		{"a longer word", words, "no mail to malice@example.community", false},
		{"a word with a letter before it", words, "no mail to malice@example.com", false},
		{"a word with a letter after it", words, "no mail to alice@example.community", false},
		{"a word after a longer one", words, "malice@example.com or alice@example.com", true},
		{"a word that would be quoted", Subject{Words: []string{`O"Neil`}}, `no mail to O"Neil`, true},
		{"a word, quoted", Subject{Words: []string{`O"Neil`}}, `no mail to "O\"Neil"`, true},
		{"a word in a URL", words, `Get "https://crm.example.com/users/alice%40example.com": EOF`, true},
		{"a longer word in a URL", words, `Get "https://crm.example.com/users/malice%40example.com": EOF`, false},
		{"a word after an escape", words, "q=mail%20alice%40example.com%26more", true},
		{"a word in a path", spaced, "/of/" + url.PathEscape("Zoë+Söhne & Co"), true},
		{"a word in a query", spaced, "/of?q=" + url.QueryEscape("Zoë+Söhne & Co"), true},
		{"small hexadecimal digits", spaced, "/of/Zo%c3%ab+S%c3%b6hne%20&%20Co", true},
		{"a word in JSON", spaced, `it says {"no": "Zo\u00eb+S\u00F6hne \u0026 Co"}`, true},
		{"the namespace after an escape", namespace, "/spaces%2Facme%2F7", true},
		{"a word at the start of a line, quoted", words, `it says "no account:\nalice@example.com"`, true},
		{"a word after another escape", words, `it says "\x00alice@example.com"`, true},
		{"a namespace at the start of a line, quoted", namespace, `it says "no tenant:\tacme"`, true},
		{"a character of two escapes", Subject{Words: []string{"𠮷野"}}, `it says {"no": "\ud842\udfb7\u91ce"}`, true},
		{"a character of a long escape", Subject{Words: []string{"𠮷野"}}, `no "\U00020bb7\u91ce"`, true},
		{"a slash in JSON", Subject{Words: []string{"a/b"}}, `it says {"no": "a\/b"}`, true},
		{"a word in a quoted answer in JSON", spaced,
			`it says "{\"no\": \"Zo\\u00eb+S\\u00F6hne \\u0026 Co\"}"`, true},
		{"a quoted word in a quoted answer", Subject{Words: []string{`O"Neil`}},
			`it says "{\"no\": \"O\\\"Neil\"}"`, true},
		{"a word in a URL in a URL", words, "/login?next=%2Fusers%2Falice%2540example.com", true},
		{"an encoded key in a URL", words, "/login?next=%2F" + alice.Encode(), true},
		{"an encoded key at the start of a line, quoted", words, `no "\n` + alice.Encode() + `"`, true},
		{"a word that looks escaped", Subject{Words: []string{"100%25"}}, "/of/100%2525", true},
		{"escapes of nothing", words, `100% of \ud800\u00 and %4`, false},
		{"another text", words, "no mail to bob@example.com", false},
		{"another key", words, datastore.NameKey("Account", "bob@example.com", nil), false},
		{"a key with a name, of the number 0", Subject{Numbers: []int64{0}}, alice, false},
		{"the shortest key, encoded", Subject{Numbers: []int64{1}}, datastore.IDKey("K", 1, nil).Encode(), true},
		{"an encoded key after many words", words, strings.Repeat("Eh-", mostCuts-1) + alice.Encode(), true},
		{"an encoded key after too many words", words, strings.Repeat("Eh-", mostCuts) + alice.Encode(), false},
		{"a longer namespace", namespace, "acme2", false},
		{"the namespace in a text", namespace, "acme-2", true},
		{"what a page has written", words, wrote(alice), true},
		{"what a page has written in the namespace", namespace, wrote(inside), true},
		{"what a page has written of others", words, wrote(inside), false},
		{"what an undo has left", words, left(child), true},
		{"a list", words, []any{int64(1), "x", alice}, true},
		{"an entity inside", namespace,
			&datastore.Entity{Properties: []datastore.Property{{Name: "of", Value: inside}}}, true},
		{"an entity inside with its key", namespace, &datastore.Entity{Key: inside}, true},
		{"another entity inside", words, &datastore.Entity{Key: inside}, false},
		{"no entity inside", words, (*datastore.Entity)(nil), false},
		{"bytes that only look compressed", words, []byte("\x00 to alice@example.com, and more"), true},
		{"bytes that are nothing of ours", words, []byte("to alice@example.com, and more"), true},
		{"nothing", words, nil, false},
	} {
		if got := test.s.InRecord(RangeKind, []datastore.Property{{Name: "p", Value: test.value}}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestSubjectNamespaces checks that the name of a namespace is not found in the names of other
// namespaces. A name without a letter is also a part of dates and IDs, and must not be found there.
func TestSubjectNamespaces(t *testing.T) {
	acme := Subject{Namespace: "acme", Others: map[string]bool{"acme-eu": true, "my.acme": true,
		"acme-eu-west": true}}
	zero, month := Subject{Namespace: "0"}, Subject{Namespace: "2026-11"}
	word := Subject{Namespace: "0", Words: []string{"0"}}
	for _, test := range []struct {
		s    Subject
		text string
		want bool
	}{
		{acme, "touch-acme", true},
		{acme, "touch-acme-eu", false},
		{acme, "touch-acme-eu-west", false},
		{acme, "touch-acme-euro", true},
		{acme, "acme-eu, then acme", true},
		{acme, "acme, then acme-eu", true},
		{acme, "of my.acme-2", false},
		{acme, "of my.acme2", false},
		{acme, "of my_acme", true},
		{zero, "0", true},
		{zero, `the namespace "0"`, true},
		{zero, `bank=KEY(NAMESPACE("0"), Bank, 5)`, true},
		{zero, `the error "no bank KEY(NAMESPACE(\"0\"), Bank, 5)"`, true},
		{zero, `[0]/Account,7`, true},
		{zero, "no tenant '0' or `1`", true},
		{zero, "no tenant '1' or `0`", true},
		{zero, "other-0", false},
		{zero, "0-other", false},
		{zero, `"0-other"`, false},
		{zero, "0 of 5", false},
		{month, "nightly-2026-11-25", false},
		{month, `in "2026-11"`, true},
		{word, "other-0", true},
	} {
		if got := test.s.InText(test.text); got != test.want {
			t.Errorf("%s in %s: %v", test.s.Namespace, test.text, got)
		}
	}
	for _, test := range []struct {
		name            string
		s               Subject
		property, value string
		want            bool
	}{
		{"the query", acme, "query", `{"kind":"K","namespace":"acme"}`, true},
		{"another query", Subject{Namespace: "acme"}, "query", `{"kind":"K","namespace":"acme-eu"}`, false},
		{"several", acme, "query", `{"kind":"K","namespaces":["b","acme"]}`, true},
		{"several others", Subject{Namespace: "acme"}, "query", `{"kind":"K","namespaces":["b","acme-2"]}`, false},
		{"a word", Subject{Words: []string{"acme"}}, "query", `{"kind":"K","namespace":"acme-eu"}`, true},
		{"a query of another build", acme, "query", `{"kind":"K","namespaces":{"acme":1}}`, true},
		{"the default one", Subject{Words: []string{"acme"}}, "query", `{"kind":"K","namespace":""}`, false},
		{"totals", zero, "totals", `{"spaces":{"0/K":{"p":1}}}`, true},
		{"other totals", Subject{Namespace: "acme"}, "totals", `{"spaces":{"acme-eu/K":{"p":1}}}`, false},
		{"totals of a kind", acme, "totals", `{"spaces":{"other/of/acme":{"p":1}}}`, true},
	} {
		p := []datastore.Property{{Name: test.property, Value: []byte(test.value)}}
		if got := test.s.InRecord(JobKind, p); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
	if (Subject{Words: []string{""}}).InText("a b") {
		t.Error("the empty word is found")
	}
}

// TestSubjectValues checks that numbers and times from users are searched, and that scattermap's
// own numbers and times are not.
func TestSubjectValues(t *testing.T) {
	at := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	zone := at.In(time.FixedZone("", 3600)).Format(time.RFC3339)
	number, word := Subject{Numbers: []int64{4711}}, Subject{Words: []string{"4711"}}
	moment := Subject{Times: []time.Time{at}}
	id := datastore.IDKey("Account", 4711, nil)
	position := func(v any) *datastore.Entity {
		return &datastore.Entity{Properties: []datastore.Property{{Name: "valued", Value: true},
			{Name: "value", Value: v}}}
	}
	left := &Range{Job: "j"}
	left.Leave([]undolog.Left{{Key: datastore.NameKey("Order", "x", id), Why: "it was changed"}})
	for _, test := range []struct {
		name           string
		s              Subject
		kind, property string
		value          any
		want           bool
	}{
		{"a parameter", number, JobKind, "params", []byte(`{"property": "tenant", "value": 4711}`), true},
		{"a word that is a number", word, JobKind, "params", []byte(`{"value": [1, 4711]}`), true},
		{"a number itself", number, JobKind, "params", int64(4711), true},
		{"another number itself", number, JobKind, "params", int64(4712), false},
		{"a text with another number", number, JobKind, "params", []byte(`{"value": "04711"}`), false},
		{"a number that is none of the whole ones", Subject{Numbers: []int64{0}}, JobKind, "params",
			[]byte(`{"value": 1.5}`), false},
		{"another number", number, JobKind, "params", []byte(`{"value": 47110, "other": 4711.5}`), false},
		{"a text that is a number", number, JobKind, "params", []byte(`{"value": {"int": "4711"}}`), true},
		{"a filter", number, JobKind, "query", []byte(`{"filters":[{"property":"tenant","op":"=","value":4711}]}`),
			true},
		{"one of a filter", number, JobKind, "query",
			[]byte(`{"filters":[{"property":"t","op":"in","value":[1,4711]}]}`), true},
		{"another filter", number, JobKind, "query",
			[]byte(`{"filters":[{"property":"tenant","op":"=","value":4712}]}`), false},
		{"the property of a filter", number, JobKind, "query",
			[]byte(`{"filters":[{"property":"of.4711","op":"=","value":1}]}`), true},
		{"filters of another build", number, JobKind, "query", []byte(`{"filters":{"tenant":4711}}`), true},
		{"another field of a query", number, JobKind, "query", []byte(`{"limit":4711}`), false},
		{"the kind of a query", word, JobKind, "query", []byte(`{"kind":"of-4711"}`), true},
		{"when a query reads", moment, JobKind, "query", []byte(`{"read_time":"2026-11-26T00:00:00Z"}`), false},
		{"a query that can't be read", number, JobKind, "query", []byte(`{"filters":[{"value":4711`), true},
		{"a share", number, JobKind, "query",
			[]byte(`{"kind":"A","filters":[{"property":"__key__","op":"share","value":"0-4711/10000"}]}`), false},
		{"the key of a query", number, JobKind, "query", []byte(`{"ancestor":"` + id.Encode() + `"}`), true},
		{"a count", number, JobKind, "totals", []byte(`{"processed":4711,"counters":{"n":4711}}`), false},
		{"the name of a namespace", number, JobKind, "totals", []byte(`{"spaces":{"4711/Account":{"p":1}}}`), true},
		{"the name of a number", Subject{Words: []string{"processed"}}, JobKind, "totals",
			[]byte(`{"processed":5}`), false},
		{"when somebody acted", moment, JobKind, "history", []byte(`[{"at":"2026-11-26T00:00:00Z","what":"paused"}]`),
			false},
		{"names of others", number, JobKind, "totals",
			[]byte(`{"counters":{"tenant/4712":3},"spaces":{"4712/Account":{"p":1}}}`), false},
		{"totals that can't be read", number, JobKind, "totals", []byte(`{"counters":{"tenant/4711"`), true},
		{"no totals", number, JobKind, "totals", []byte{}, false},
		{"the name of a counter", number, JobKind, "totals", []byte(`{"processed":1,"counters":{"tenant/4711":3}}`),
			true},
		{"a setting", number, JobKind, "page_size", int64(4711), false},
		{"a reason", number, JobKind, "history",
			[]byte(`[{"at":"2026-11-26T00:00:00Z","what":"paused","why":"for 4711"}]`), true},
		{"an error", number, RangeKind, "error", "no such account: 4711", true},
		{"the ID of a key", number, RangeKind, "samples", []any{&datastore.Entity{Properties: []datastore.Property{
			{Name: "key", Value: id}}}}, true},
		{"where a range begins", number, RangeKind, "start", position(int64(4711)), true},
		{"what a range has processed", number, RangeKind, "processed", int64(4711), false},
		{"an ID in a stored path", number, RangeKind, "left", left.Left, true},
		{"how many were written", number, BatchKind, "wrote", []byte(`{"written":4711}`), false},
		{"a tick's query", number, ScheduleKind, "queued",
			[]byte(`{"query":{"filters":[{"property":"t","op":"=","value":4711}]},"params":{}}`), true},
		{"a tick's time", moment, ScheduleKind, "queued", []byte(`{"at":"2026-11-26T00:00:00Z"}`), false},
		{"a tick's share", number, ScheduleKind, "queued",
			[]byte(`{"query":{"filters":[{"property":"__key__","op":"share","value":"0-4711/10000"}]}}`), false},
		{"a tick that can't be read", number, ScheduleKind, "queued", []byte(`{"params":{"value":4711`), true},
		{"no tick", number, ScheduleKind, "queued", []byte{}, false},
		{"a tick's parameter", number, ScheduleKind, "queued", []byte(`{"query":{},"params":{"value":4711}}`), true},
		{"a tick's setting", number, ScheduleKind, "queued",
			[]byte(`{"query":{},"params":{},"options":{"PageSize":4711}}`), false},
		{"a tick's text, escaped", Subject{Words: []string{"AT&T"}}, ScheduleKind, "queued",
			[]byte(`{"query":{},"params":{"value":"AT\u0026T"}}`), true},
		{"a job before a tick", number, ScheduleKind, "past",
			[]byte(`[{"at":"2026-11-26T00:00:00Z","outcome":"skipped","job":"touch-4711"}]`), true},
		{"a time", moment, JobKind, "params", []byte(`{"value": {"time": "2026-11-26T00:00:00Z"}}`), true},
		{"a time itself", moment, JobKind, "params", at, true},
		{"another time itself", moment, JobKind, "params", at.Add(time.Second), false},
		{"another time", moment, JobKind, "params", []byte(`{"value": {"time": "2026-11-26T00:00:01Z"}}`), false},
		{"a text that is no time", Subject{Times: []time.Time{{}}}, JobKind, "params", []byte(`{"value": "x"}`), false},
		{"a time of a zone that nobody gave", moment, RangeKind, "counters", []byte(`{"` + zone + `": 1}`), false},
		{"a name that begins as in a stored path", Subject{Words: []string{"nora"}}, JobKind, "params",
			[]byte(`{"value": "nora"}`), true},
		{"a history that can't be read", number, JobKind, "history", []byte(`[{"why":"for 4711`), true},
		{"no history", number, JobKind, "history", []byte{}, false},
		{"a time of a zone", moment, JobKind, "params", []byte(`{"value": "` + zone + `"}`), true},
		{"a time in an error", moment, JobKind, "error", "nothing at 2026-11-26T00:00:00Z", true},
		{"a time where a range ends", moment, RangeKind, "end", position(at), true},
		{"when a tick was", moment, ScheduleKind, "past",
			[]byte(`[{"at":"2026-11-26T00:00:00Z","outcome":"skipped","job":"touch"}]`), false},
		{"when a job began", moment, JobKind, "created", at, false},
		{"a property of another build", word, ScheduleKind, "later", "touch-4711", true},
		{"a state", Subject{Words: []string{"succeeded"}}, JobKind, "state", "succeeded", false},
	} {
		if got := test.s.InRecord(test.kind,
			[]datastore.Property{{Name: test.property, Value: test.value}}); got != test.want {
			t.Errorf("%s: %v", test.name, got)
		}
	}
}

// TestSubjectInJob checks which parts of a job's record are searched for a subject, and which jobs
// are about the subject.
func TestSubjectInJob(t *testing.T) {
	query := []byte(`{"kind":"Account","filters":[{"property":"owner","op":"=","value":"alice"}]}`)
	for name, c := range map[string]struct {
		j             Job
		mentions, are bool
	}{
		"a job of others": {Job{ID: "nightly", Query: []byte(`{"kind":"Account"}`), Params: []byte(`{}`)},
			false, false},
		"the ID":                 {Job{ID: "for-alice"}, true, true},
		"the schedule":           {Job{ID: "j", Schedule: "for-alice"}, true, true},
		"the undo":               {Job{ID: "j", Undo: "undo-for-alice"}, true, true},
		"the query":              {Job{ID: "j", Query: query}, true, true},
		"the parameters":         {Job{ID: "j", Params: []byte(`{"owner":"alice"}`)}, true, true},
		"an error":               {Job{ID: "j", Error: "no mail to alice"}, true, false},
		"the name of its mapper": {Job{ID: "j", Mapper: "alice"}, false, false},
	} {
		if got := alice.InJob(&c.j); got != c.mentions {
			t.Errorf("%s: it mentions the subject: %v", name, got)
		}
		if got := alice.IsAbout(&c.j); got != c.are {
			t.Errorf("%s: it is about the subject: %v", name, got)
		}
	}
}

// TestWholeWords checks that a word is found only if no letter or digit is directly before or after
// it.
func TestWholeWords(t *testing.T) {
	for b := range 256 {
		next := string([]byte{byte(b)})
		want := !strings.Contains("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", next)
		if alice.InText("alice"+next) != want || alice.InText(next+"alice") != want {
			t.Errorf("next to %q: found before %v, after %v", next, alice.InText("alice"+next),
				alice.InText(next+"alice"))
		}
	}
	if alice.InText("") {
		t.Error("an empty text mentions it")
	}
}
