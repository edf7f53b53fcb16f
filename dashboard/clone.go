package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/url"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/internal/names"
	"github.com/scattermap/scattermap/internal/operator"
	"github.com/scattermap/scattermap/internal/value"
	"github.com/scattermap/scattermap/mapper"
)

// clone returns the arguments that start a job again.
func (s *server) clone(ctx context.Context, id string) (operator.Start, error) {
	st, err := s.status(ctx, id)
	if err != nil {
		return operator.Start{}, err
	}
	again, ok := operator.Clone(st)
	if !ok {
		return operator.Start{}, operator.BadRequest("an undo can't be cloned: undo it instead")
	}
	return again, nil
}

// clonable reports whether the form can start a job again: it is no undo, and the engine has its
// mapper.
func (s *server) clonable(st *mapper.Status) bool {
	again, ok := operator.Clone(st)
	has := func(m mapper.MapperInfo) bool { return m.Name == again.Mapper }
	return ok && slices.ContainsFunc(s.engine.Mappers(), has)
}

// fill fills a form with the arguments that start a job again. It leaves out what the viewer may
// not see, and what the inputs can't hold, and lists that in f.Lost.
func (s *server) fill(f *form, id string, again operator.Start) error {
	f.Clone = id
	f.In["clone"] = id
	for part, v := range map[string]any{"query": &again.Query, "parameters": &again.Params} {
		plain, err := json.Marshal(v)
		if err != nil {
			return err
		}
		shown, err := s.redactJSON(TextParams, json.RawMessage(plain))
		if err != nil {
			return err
		}
		if !bytes.Equal(plain, shown) {
			f.Lost = append(f.Lost, setting{part, "hidden on this dashboard"})
			reflect.ValueOf(v).Elem().SetZero()
		}
	}
	if again.Queue != "" && !s.engine.Owns(again.Queue) {
		f.Lost = append(f.Lost, setting{"queue", again.Queue + ", which this service does not have"})
		again.Queue = ""
	}
	if again.Queue != "" {
		again.Queue = path.Base(again.Queue)
	}
	filled, lost := inputsOf(again, f.Chosen.Fields)
	for name := range filled {
		f.In[name] = filled.Get(name)
	}
	in, _ := f.read(filled) // an error, such as a missing ID, is one of the viewer's start
	got := operator.Start{Mapper: again.Mapper, Query: in.query, StartOptions: in.options}
	got.Query.Filters, again.Query.Filters, again.Params = nil, nil, nil // inputsOf has compared them
	differing, err := differences(again, got)
	f.Lost = append(append(f.Lost, lost...), differing...)
	slices.SortFunc(f.Lost, func(a, b setting) int { return strings.Compare(a.Name, b.Name) })
	return err
}

// inputsOf returns the values of the form's inputs that stand for the arguments of a start. It also
// returns filters and parameters for which there is no value.
func inputsOf(from operator.Start, fields []field) (q url.Values, lost []setting) {
	query, o := from.Query, from.StartOptions
	q = url.Values{"how": {asAll}}
	set := func(name, text string) {
		if text != "" && !strings.ContainsAny(text, unfit) {
			q.Set(name, text)
		}
	}
	set("kind", listed(query.Kind, query.Kinds))
	set("namespace", listed(query.Namespace, query.Namespaces))
	set("shard_by", query.ShardBy)
	if !query.ReadTime.IsZero() {
		set("read_time", query.ReadTime.UTC().Format(time.RFC3339Nano))
	}
	if o.DryRun {
		q.Set("how", asRehearsal)
	}
	lost = append(lost, conditions(query, q)...)
	for name, n := range map[string]int{"page_size": o.PageSize, "workers": o.ExpectedWorkers,
		"concurrency": o.Concurrency, "failure_limit": o.FailureLimit, "attempts": o.Retries.MaxAttempts} {
		if n != 0 {
			set(name, strconv.Itoa(n))
		}
	}
	for name, n := range map[string]float64{"rate": o.Rate.EntitiesPerSecond, "calls": o.Rate.CallsPerSecond,
		"budget": o.Budget.Dollars} {
		if n != 0 {
			set(name, strconv.FormatFloat(n, 'f', -1, 64))
		}
	}
	for name, d := range map[string]time.Duration{"page_time": o.PageTime, "entity_timeout": o.EntityTimeout,
		"retain": o.Retain} {
		if d != 0 {
			set(name, d.String())
		}
	}
	if o.Retain == mapper.RetainAlways {
		q.Set("retain", always)
	}
	for name, on := range map[string]bool{"all_namespaces": query.AllNamespaces, "keys_only": query.KeysOnly,
		"ramp": o.Rate.Ramp, "background": o.Background, "beside": o.AllowOverlap, "allow_empty": o.AllowEmpty} {
		if on {
			q.Set(name, "on")
		}
	}
	set("queue", o.Queue)
	return q, append(lost, fillParams(from.Params, fields, q)...)
}

// unfit are the characters that an input of one line can't hold.
const unfit = "\r\n\x00"

// listed returns one name, or the names of a list, as a form's input has them.
func listed(one string, several []string) string {
	if one != "" {
		several = []string{one}
	}
	if len(several) == 0 {
		return ""
	}
	return operator.JoinNames(several)
}

// conditions sets the inputs for the filters of a query: the conditions, and a share of the
// entities. It returns the filters for which there is no input.
func conditions(query mapper.Query, q url.Values) (lost []setting) {
	var lines []string
	add := func(text string, want mapper.Query) bool {
		var got mapper.Query
		if err := operator.AddCondition(&got, text); err != nil || !reflect.DeepEqual(got, want) {
			return false
		}
		lines = append(lines, text)
		return true
	}
	for _, f := range query.Filters {
		switch how, share := shareOf(f); {
		case how != "" && q.Get("how") == asAll:
			q.Set("how", how)
			q.Set("share", share)
		case !add(gql.Path(f.Property)+" "+f.Op+" "+value.Text(f.Value), mapper.Query{Filters: []mapper.Filter{f}}):
			text := operator.Over(mapper.Query{Filters: []mapper.Filter{f}})
			lost = append(lost, setting{"filter", strings.TrimPrefix(text, " where ")})
		}
	}
	if k := query.Ancestor; k != nil && !add("__key__ HAS ANCESTOR "+value.Text(k), mapper.Query{Ancestor: k}) {
		lost = append(lost, setting{"ancestor", names.Key(k)})
	}
	if k := query.Start; k != nil && !add("__key__ >= "+value.Text(k), mapper.Query{Start: k}) {
		lost = append(lost, setting{"start", names.Key(k)})
	}
	if k := query.End; k != nil && !add("__key__ < "+value.Text(k), mapper.Query{End: k}) {
		lost = append(lost, setting{"end", names.Key(k)})
	}
	if len(lines) > 0 {
		q.Set("filters", strings.Join(lines, "\n"))
	}
	return lost
}

// shareOf returns the values of the inputs "how" and "share" that stand for a filter. They are empty
// if the filter is no share of the keys, or one that the inputs can't describe.
func shareOf(f mapper.Filter) (how, share string) {
	text, _ := f.Value.(string)
	var from, to, of int64
	if n, err := fmt.Sscanf(text, "%d-%d/%d", &from, &to, &of); f.Op != "share" || n != 3 || err != nil || of <= 0 {
		return "", ""
	}
	how, parts := asCanary, to
	if from != 0 {
		how, parts = asRest, from
	}
	share = strconv.FormatFloat(float64(parts)*100/float64(of), 'f', -1, 64) + "%"
	var got mapper.Query
	err := operator.AddShare(&got, share, "")
	if how == asRest {
		got = mapper.Query{}
		err = operator.AddShare(&got, "", share)
	}
	var a, b, all int64
	if err != nil {
		return "", ""
	}
	text, _ = got.Filters[0].Value.(string)
	if n, err := fmt.Sscanf(text, "%d-%d/%d", &a, &b, &all); n != 3 || err != nil || a*of != from*all ||
		b*of != to*all {
		return "", ""
	}
	return how, share
}

// fillParams sets the inputs for parameters. It returns the parameters for which there is no input,
// or whose input can't hold the value.
func fillParams(params json.RawMessage, fields []field, q url.Values) (lost []setting) {
	miss := func(name string, raw json.RawMessage) {
		if !empty(raw) {
			lost = append(lost, setting{strings.TrimSuffix("parameter "+name, " "), string(raw)})
		}
	}
	for _, f := range fields {
		raw := at(params, f.Path)
		text := f.text(raw)
		if f.Value = text; !f.holds(raw) {
			miss(f.Name, raw)
			continue
		}
		if text != "" {
			q.Set(f.ID(), text)
		}
	}
	unknown(params, nil, fields, miss)
	return lost
}

// at returns the part of a JSON object that a path of names leads to, or nil.
func at(object json.RawMessage, path []string) json.RawMessage {
	for _, name := range path {
		var members map[string]json.RawMessage
		if json.Unmarshal(object, &members) != nil {
			return nil
		}
		object = members[name]
	}
	return object
}

// empty reports whether a value in JSON is one for which an input is empty.
func empty(raw json.RawMessage) bool {
	return slices.Contains([]string{"", "null", "false", `""`, "[]", "{}"}, string(raw))
}

// unknown calls miss for each member of a JSON object that has no field. The path leads to the
// object.
func unknown(object json.RawMessage, path []string, fields []field, miss func(string, json.RawMessage)) {
	var members map[string]json.RawMessage
	if json.Unmarshal(object, &members) != nil {
		if len(fields) == 0 {
			miss("", object)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(members)) {
		here := append(slices.Clip(path), name)
		isField := func(f field) bool { return len(f.Path) <= len(here) && slices.Equal(f.Path, here[:len(f.Path)]) }
		isInside := func(f field) bool { return len(f.Path) > len(here) && slices.Equal(f.Path[:len(here)], here) }
		switch {
		case slices.ContainsFunc(fields, isField):
		case slices.ContainsFunc(fields, isInside):
			unknown(members[name], here, fields, miss)
		default:
			miss(strings.Join(here, "."), members[name])
		}
	}
}

// text returns the text of the field's input for a value in JSON. It does the reverse of encode, as
// far as there is such a text.
func (f *field) text(raw json.RawMessage) string {
	if empty(raw) && (f.Kind != "bool" || string(raw) != "false") {
		return ""
	}
	var s string
	if f.Quoted && json.Unmarshal(raw, &s) == nil {
		raw = json.RawMessage(s)
	}
	var lines []string
	var d time.Duration
	switch {
	case f.Kind == "bool" && f.Optional:
		return string(raw)
	case f.Kind == "bool":
		return map[bool]string{true: "on"}[string(raw) == "true"]
	case f.Kind == "duration" && json.Unmarshal(raw, &d) == nil:
		return d.String()
	case f.Kind == "lines" && json.Unmarshal(raw, &lines) == nil:
		return strings.Join(lines, "\n")
	case (f.Kind == "text" || f.Kind == "time") && json.Unmarshal(raw, &s) == nil:
		return s
	}
	return string(raw)
}

// holds reports whether the field's input, with its present text, stands for a value in JSON.
func (f *field) holds(raw json.RawMessage) bool {
	if f.Kind == "text" && strings.ContainsAny(f.Value, unfit) || strings.Contains(f.Value, "\x00") {
		return false
	}
	g := *f
	g.Required = false
	encoded, err := g.encode()
	switch {
	case err != nil:
		return false
	case encoded == nil:
		return empty(raw)
	case f.Quoted || f.Type == nil:
		return bytes.Equal(encoded, raw)
	}
	a, b := reflect.New(f.Type), reflect.New(f.Type)
	return json.Unmarshal(encoded, a.Interface()) == nil && json.Unmarshal(raw, b.Interface()) == nil &&
		reflect.DeepEqual(a.Interface(), b.Interface())
}

// defaults are the values of settings with which a start by the form has the same effect as without
// them.
var defaults = map[string]string{"failure_share": "1", "retries.first_ns": "1000000000",
	"retries.max_ns": "1024000000000"}

// differences lists what the start got lacks of the start want, with the values of want.
func differences(want, got operator.Start) (all []setting, err error) {
	a, err := leaves(want)
	if err != nil {
		return nil, err
	}
	b, err := leaves(got)
	for _, name := range slices.Sorted(maps.Keys(a)) {
		if raw := a[name]; raw != b[name] && raw != defaults[name] && name != "id" {
			short := strings.NewReplacer(".", " ", "_", " ").Replace(strings.TrimSuffix(name, "_ns"))
			all = append(all, setting{short, valueOf(name, raw)})
		}
	}
	return all, err
}

// leaves returns the members of a start's JSON, by their paths with dots. A list of one name stands
// for the name.
func leaves(s operator.Start) (map[string]string, error) {
	if len(s.Query.Kinds) == 1 {
		s.Query.Kind, s.Query.Kinds = s.Query.Kinds[0], nil
	}
	if len(s.Query.Namespaces) == 1 {
		s.Query.Namespace, s.Query.Namespaces = s.Query.Namespaces[0], nil
	}
	encoded, err := json.Marshal(s)
	all := make(map[string]string)
	var add func(prefix string, raw json.RawMessage)
	add = func(prefix string, raw json.RawMessage) {
		var members map[string]json.RawMessage
		if json.Unmarshal(raw, &members) != nil {
			all[prefix] = string(raw)
			return
		}
		for name, member := range members {
			add(strings.TrimPrefix(prefix+"."+name, "."), member)
		}
	}
	add("", encoded)
	delete(all, "params")
	return all, err
}
