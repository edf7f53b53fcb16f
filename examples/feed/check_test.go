package main

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// published is the time in the example feeds of Google's documentation.
const published = 1524606581

// Names of feeds in one file, and the records of such a feed.
const (
	merchantFile = "merchant_feed_1524606581_001_of_001.json.gz"
	slotFile     = "availability_feed_1524606581_001_of_001.json.gz"
	aAndB        = `{"merchant_id": "a", "name": "A"}, {"merchant_id": "b", "name": "B"}`
)

// slotAt returns an availability record with the fields of the documentation's examples.
func slotAt(merchant string, start int) string {
	return fmt.Sprintf(`{"availability": [{"spots_total": 1, "spots_open": 1, "duration_sec": 3600, `+
		`"service_id": "1000", "start_sec": %d, "merchant_id": "%s", `+
		`"confirmation_mode": "CONFIRMATION_MODE_SYNCHRONOUS"}]}`, start, merchant)
}

// shardText returns the content of a feed's file. The metadata comes after the processing
// instruction.
func shardText(metadata, list string, records ...string) string {
	return fmt.Sprintf(`{"metadata": {"processing_instruction": "PROCESS_AS_COMPLETE"%s}, "%s": [%s]}`, metadata, list,
		strings.Join(records, ", "))
}

func shardOf(number, total int, nonce, list string, records ...string) string {
	return shardText(fmt.Sprintf(`, "shard_number": %d, "total_shards": %d, "nonce": %s, `+
		`"generation_timestamp": %d`, number, total, nonce, published), list, records...)
}

// threeShards returns the documentation's feed of three shards, with the recommended file names.
func threeShards(nonce string) map[string]string {
	files := make(map[string]string)
	for i, start := range []int{1577275200, 1577620800, 1576670400} {
		files[fmt.Sprintf("availability_feed_%d_%03d_of_003.json.gz", published, i+1)] = shardOf(i, 3, nonce,
			"service_availability", slotAt(fmt.Sprint("merchant", i+1), start))
	}
	return files
}

// writeFolder writes files to a folder. It compresses files whose names end with .gz.
func writeFolder(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		content := []byte(text)
		if strings.HasSuffix(strings.ToLower(name), ".gz") && !strings.HasPrefix(text, "raw:") {
			content = gzipped(text)
		}
		content = bytes.TrimPrefix(content, []byte("raw:"))
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func gzipped(text string) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	io.WriteString(z, text)
	z.Close()
	return b.Bytes()
}

func checked(t *testing.T, dir string) *Report {
	t.Helper()
	r, err := checkFolder(dir, maxShardBytes, maxShards, time.Unix(published+60, 0))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// TestPublished checks the documentation's feeds with the command: one of three shards, and one of
// two regions. The only advice must be about their age.
func TestPublished(t *testing.T) {
	regions := map[string]string{
		"availability_feed_1524606581_001_of_002.json.gz": shardOf(0, 2, `"111111"`, "service_availability",
			slotAt("US_merchant_1", 1577275200)),
		"availability_feed_1524606581_002_of_002.json.gz": shardOf(1, 2, `"111111"`, "service_availability",
			slotAt("EU_merchant_1", 1577620800)),
	}
	for _, files := range []map[string]string{threeShards(`"111111"`), regions} {
		dir := writeFolder(t, files)
		r, err := feed(t, "-check", dir)
		if err != nil {
			t.Fatal(err)
		}
		want := FeedReport{Name: "availability_feed_1524606581", Kind: "availability", Nonce: "111111",
			Timestamp: published, Shards: len(files), Records: int64(len(files))}
		got := r.Feeds[0]
		if got.Bytes == 0 || got.Largest < 1 {
			t.Errorf("%+v, want its bytes", got)
		}
		if got.Bytes, got.Largest = 0, 0; len(r.Feeds) != 1 || got != want {
			t.Errorf("%+v, want %+v", r.Feeds, want)
		}
		if len(r.Advice) != 1 || !strings.Contains(r.Advice[0], "should be recent") {
			t.Errorf("the advice is %q, want that the feed is old", r.Advice)
		}
		if r := checked(t, dir); len(r.Advice) > 0 {
			t.Errorf("the advice is %q, a minute after the feed's time", r.Advice)
		}
	}
}

// single returns a feed in one file. In its text, it replaces from by to.
func single(from, to string) map[string]string {
	text := shardOf(0, 1, `"5"`, "merchant", aAndB)
	if !strings.Contains(text, from) {
		panic(from)
	}
	return map[string]string{merchantFile: strings.Replace(text, from, to, 1)}
}

// slots returns a feed with one slot. In its text, it replaces from by to.
func slots(from, to string) map[string]string {
	text := shardOf(0, 1, `"6"`, "service_availability", slotAt("m", 1577275200))
	if !strings.Contains(text, from) {
		panic(from)
	}
	return map[string]string{slotFile: strings.Replace(text, from, to, 1)}
}

// with returns the feed of three shards. In each file, it replaces from by to.
func with(from, to string) map[string]string {
	files := threeShards(`"111111"`)
	for name, text := range files {
		if !strings.Contains(text, from) {
			panic(from)
		}
		files[name] = strings.Replace(text, from, to, 1)
	}
	return files
}

// within returns the feed of three shards. In one file, it replaces from by to.
func within(number int, from, to string) map[string]string {
	files := threeShards(`"111111"`)
	name := fmt.Sprintf("availability_feed_%d_%03d_of_003.json.gz", published, number+1)
	if !strings.Contains(files[name], from) {
		panic(from)
	}
	files[name] = strings.Replace(files[name], from, to, 1)
	return files
}

func merged(all ...map[string]string) map[string]string {
	files := make(map[string]string)
	for _, some := range all {
		maps.Copy(files, some)
	}
	return files
}

// renamed gives files new names, in the order of their old names.
func renamed(files map[string]string, names ...string) map[string]string {
	others := make(map[string]string)
	for i, name := range slices.Sorted(maps.Keys(files)) {
		others[names[i]] = files[name]
	}
	return others
}

// TestAccepted checks feeds that keep all rules, in all forms that the format allows. Some get
// advice.
func TestAccepted(t *testing.T) {
	services := map[string]string{"service_feed_1524606581_001_of_001.json.gz": shardOf(0, 1, `"7"`, "service",
		`{"merchant_id": "a", "service_id": "1", "localized_service_name": {"value": "Cut"}, `+
			`"price": {"price_micros": "25000000", "currency_code": "USD"}}`,
		`{"merchant_id": "b", "service_id": "1"}`)}
	var crowd []string
	for i := range 20_000 {
		crowd = append(crowd, fmt.Sprintf(`{"merchant_id": "%x", "name": "N"}`, sha256.Sum256(fmt.Append(nil, i))))
	}
	camels := within(0, `"generation_timestamp"`, `"generationTimestamp"`)
	camels["availability_feed_1524606581_002_of_003.json.gz"] = strings.NewReplacer(
		"processing_instruction", "processingInstruction", "total_shards", "totalShards",
		"service_availability", "serviceAvailability", "spots_open", "spotsOpen", "start_sec", "startSec",
		"merchant_id", "merchantId", "service_id", "serviceId", "duration_sec", "durationSec",
		"spots_total", "spotsTotal", "confirmation_mode", "confirmationMode",
	).Replace(shardOf(1, 3, `"111111"`, "service_availability", slotAt("merchant2", 1577620800)))
	merchants, slot := single("", "")[merchantFile], slotAt("m", 1577275200)
	recordsFirst := `{"merchant": [{"merchant_id": "a", "name": "A"}], "metadata": ` +
		`{"generation_timestamp": 1524606581, "processing_instruction": "PROCESS_AS_COMPLETE"}}`
	later := strings.NewReplacer("1524606581", "1524606641", `"5"`, `"9"`).Replace(merchants)
	const otherOrder = "availability_feed_1524606581_00%d_of_003.json.gz"
	of2 := "merchant_feed_1524606581_00%d_of_002.json.gz"
	for what, test := range map[string]struct {
		files  map[string]string
		advice string // a part of the advice; empty: there is none
	}{
		"as published":            {threeShards(`"111111"`), ""},
		"nonce as a number":       {threeShards(`111111`), ""},
		"nonce in both forms":     {within(1, `"111111"`, `111111`), ""},
		"largest nonce":           {threeShards(`"18446744073709551615"`), ""},
		"large nonce as a number": {threeShards(`18446744073709551615`), "number above 2^53"},
		"time as a string":        {with(`: 1524606581`, `: "1524606581"`), ""},
		"time in both forms":      {within(2, `: 1524606581`, `: "1524606581"`), ""},
		"time as a float":         {with(`: 1524606581`, `: 1.524606581e9`), ""},
		"shard as a string":       {with(`"total_shards": 3`, `"total_shards": "3"`), ""},
		"instruction as a number": {with(`"PROCESS_AS_COMPLETE"`, `1`), ""},
		"names of lowerCamelCase": {with(`"shard_number"`, `"shardNumber"`), ""},
		"other names in camels":   {camels, ""},
		"first number left out":   {within(0, `"shard_number": 0, `, ``), "taken for 0"},
		"records first":           {map[string]string{merchantFile: recordsFirst}, ""},
		"one file without shard":  {single(`"shard_number": 0, "total_shards": 1, "nonce": "5", `, ``), ""},
		"one file, null": {
			single(`"shard_number": 0, "total_shards": 1, "nonce": "5"`, `"nonce": null, "total_shards": null`),
			"",
		},
		"one file, no nonce":  {single(`"nonce": "5", `, ``), ""},
		"one file, no number": {single(`"shard_number": 0, `, ``), ""},
		"three feeds": {
			merged(single("", ""), services, threeShards(`"8"`)),
			"",
		},
		"two times of a feed": {
			merged(single("", ""), map[string]string{"merchant_feed_1524606641_001_of_001.json.gz": later}),
			"",
		},
		"plain JSON": {
			renamed(single("", ""), "merchant_feed_1524606581_001_of_001.json"),
			"names that say",
		},
		"names of one's own": {
			renamed(threeShards(`"111111"`), "us/one.json.gz", "eu/two.JSON.GZ", "three"),
			"names that say",
		},
		"one name, twice": {
			renamed(threeShards(`"111111"`), "us/a.json.gz", "eu/a.json.gz", "b.json.gz"),
			"replace each other",
		},
		"name of one file": {renamed(single("", ""), "merchants_feed_1524606581.json.gz"), ""},
		"name of another": {
			renamed(single("", ""), "service_feed_1524606581_001_of_001.json.gz"),
			"something else",
		},
		"name of another time": {
			renamed(single("", ""), "merchant_feed_1524606582_001_of_001.json.gz"),
			"something else",
		},
		"names in another order": {
			renamed(threeShards(`"111111"`), fmt.Sprintf(otherOrder, 3), fmt.Sprintf(otherOrder, 2),
				fmt.Sprintf(otherOrder, 1)),
			"something else",
		},
		"a page beside them": {
			merged(single("", ""), map[string]string{"README.md": "# Feeds", "sums.gz": "1 2 3"}),
			"passed over",
		},
		"what a Mac leaves": {
			merged(single("", ""), map[string]string{"._" + merchantFile: "raw:\x00\x05", ".git/a.json": "{"}),
			"passed over",
		},
		"JSON of another sort": {
			merged(single("", ""), map[string]string{"package.json": `{"name": "x"}`}),
			"passed over",
		},
		"what an export notes": {
			merged(single("", ""), map[string]string{"manifest.json": `{"run": "x"}`, "_SUCCESS": ""}),
			"",
		},
		"white space": {map[string]string{merchantFile: " \n" + merchants + "\n \n"}, ""},
		"a list of it, by nonce": {
			renamed(within(1, `, "service_availability": [`+slotAt("merchant2", 1577620800)+"]", ""),
				"a.json", "b.json", "c.json"),
			"names that say",
		},
		"more shards than recommended": {
			manyShards(maxShards + 1),
			"has 21 shards, and up to 20 are recommended: agree on more with Google's support",
		},
		"as many as are recommended": {manyShards(maxShards), ""},
		"times that one field tells": {slots(`]}`, "]}, "+strings.Join([]string{
			strings.Replace(slot, `"m"`, `"n"`, 1),
			strings.Replace(slot, `"1000"`, `"1001"`, 1),
			strings.Replace(slot, `1577275200`, `1577275201`, 1),
			strings.Replace(slot, `3600`, `3601`, 1),
			strings.Replace(slot, `"service_id"`, `"resources": {"party_size": 2}, "service_id"`, 1),
			strings.Replace(slot, `"service_id"`, `"availability_tag": "t", "service_id"`, 1),
		}, ", ")), ""},
		"no times":      {slots(slotAt("m", 1577275200), `{"availability": []}, {}, {}`), "no records"},
		"several times": {slots(`]}`, `]}, `+slotAt("m", 1577275201)+`, `+slotAt("m", 1577275202)), ""},
		"int64s as strings": {slots(`"duration_sec": 3600, "service_id": "1000", "start_sec": 1577275200`,
			`"duration_sec": "3600", "service_id": "1000", "start_sec": "1577275200"`), ""},
		"fields that may be left out": {slots(`"spots_open": 1, `, ``), ""},
		"and one that should be there": {
			slots(`"duration_sec": 3600, `, ``),
			"1 of 1 record without duration_sec",
		},
		"a mode by number": {slots(`"CONFIRMATION_MODE_SYNCHRONOUS"`, `2`), ""},
		"fields that are not checked": {
			slots(`"spots_total"`, `"linkout": {"x": [1, null, true]}, "spots_total"`),
			"",
		},
		"the fields of dinners": {
			slots(`"spots_total"`, `"resources": {"party_size": 4}, "spots_total"`),
			"",
		},
		"a time far ahead":               {single("1524606581", "1524610000"), "in the future"},
		"a feed that is old":             {single("1524606581", "1524006581"), "7 days ago"},
		"more than the recommended JSON": {single(`]}`, `], "comment": "x"}`), `"comment"`},
		"uneven": {map[string]string{
			fmt.Sprintf(of2, 1): shardOf(0, 2, `"5"`, "merchant", crowd...),
			fmt.Sprintf(of2, 2): shardOf(1, 2, `"5"`, "merchant", `{"merchant_id": "c", "name": "C"}`),
		}, "not filled evenly"},
	} {
		t.Run(what, func(t *testing.T) {
			r := checked(t, writeFolder(t, test.files))
			advice := strings.Join(r.Advice, "\n")
			if len(r.Problems) > 0 || len(r.Feeds) == 0 {
				t.Errorf("the problems are %q, of feeds %+v", r.Problems, r.Feeds)
			}
			if test.advice == "" && advice != "" || !strings.Contains(advice, test.advice) {
				t.Errorf("the advice is %q, want %q", advice, test.advice)
			}
		})
	}
}

// TestRefused checks feeds that each break one rule. The report must name the file and the problem.
func TestRefused(t *testing.T) {
	merchants, slot := single("", ""), slotAt("m", 1577275200)
	shared := map[string]string{"m.json": shardOf(0, 1, `"6"`, "merchant", `{"merchant_id": "a", "name": "A"}`)}
	type files = map[string]string
	for what, test := range map[string]struct {
		files files
		want  string
	}{
		"one nonce of two feeds": {
			merged(slots("", ""), shared),
			"the nonce 6 is that of both merchant_feed_1524606581 (m.json) and " +
				"availability_feed_1524606581 (" + slotFile + "): each feed has one of its own",
		},
		"one nonce, as a number and a string": {
			merged(slots(`"6"`, `6`), shared),
			"the nonce 6 is that of both",
		},
		"one nonce of two times": {merged(merchants, renamed(single("1524606581", "1524606641"),
			"merchant_feed_1524606641_001_of_001.json.gz")), "and all shards of a feed have one generation_timestamp"},
		"another nonce in a shard": {
			within(1, `"111111"`, `"111112"`),
			"there is no shard_number 1, of 3 shards: a feed is processed when all are there; " +
				"availability_feed_1524606581_002_of_003.json.gz has another nonce",
		},
		"another time in a shard": {
			within(2, `: 1524606581`, `: 1524606582`),
			"has another generation_timestamp",
		},
		"another total in a shard": {
			within(2, `"total_shards": 3`, `"total_shards": 4`),
			"total_shards is 4, and that of",
		},
		"no nonce in a shard": {within(1, `"nonce": "111111", `, ``), "no nonce, or 0"},
		"no nonces":           {with(`"nonce": "111111", `, ``), "no nonce, or 0"},
		"a nonce of 0":        {with(`"111111"`, `"0"`), "no nonce, or 0"},
		"an empty nonce":      {with(`"111111"`, `""`), `nonce: it is "", want an integer`},
		"a nonce of words":    {with(`"111111"`, `"tonight"`), `nonce: it is "tonight", want an integer`},
		"a negative nonce":    {with(`"111111"`, `-1`), `nonce: it is -1, want an integer`},
		"a large nonce":       {with(`"111111"`, `"18446744073709551616"`), "2^64-1"},
		"shards from 1 on": {
			renumbered(threeShards(`"1"`)),
			"its shard_number is 3, want 0 to 2: they count from 0",
		},
		"a missing shard": {lost(threeShards(`"1"`), 1), "there is no shard_number 1, of 3"},
		"many missing shards": {
			single(`"total_shards": 1`, `"total_shards": 9`),
			"no shard_number 1, 2, 3, 4, 5, and others, of 9",
		},
		"a number twice": {
			within(1, `"shard_number": 1`, `"shard_number": 0`),
			"its shard_number 0 is that of",
		},
		"a number left out twice": {
			merged(within(1, `"shard_number": 1, `, ``)),
			"its shard_number 0 is that of",
		},
		"a number without total": {
			single(`"shard_number": 0, "total_shards": 1`, `"shard_number": 1`),
			"there is no total_shards",
		},
		"a total of 0": {
			single(`"total_shards": 1`, `"total_shards": 0`),
			"total_shards: it is 0, want 1 to",
		},
		"a negative number": {
			single(`"shard_number": 0`, `"shard_number": -1`),
			"shard_number: it is -1, want 0 to",
		},
		"half a number": {
			single(`"shard_number": 0`, `"shard_number": 0.5`),
			"it is 0.5, want an integer",
		},
		"incremental": {
			single("COMPLETE", "INCREMENTAL"),
			`is "PROCESS_AS_INCREMENTAL", want "PROCESS_AS_COMPLETE"`,
		},
		"another instruction": {single("COMPLETE", "FULL"), "processing_instruction: it is"},
		"no instruction": {
			single(`"processing_instruction": "PROCESS_AS_COMPLETE", `, ``),
			`processing_instruction is ""`,
		},
		"no time": {
			single(`, "generation_timestamp": 1524606581`, ``),
			"no generation_timestamp",
		},
		"milliseconds":  {single(`1524606581`, `1524606581000`), "in seconds since 1970"},
		"a date":        {single(`1524606581`, `"2018-04-24T21:49:41Z"`), "in seconds since 1970"},
		"half a second": {single(`1524606581`, `1524606581.5`), "want an integer"},
		"another case": {
			single(`"shard_number"`, `"Shard_Number"`),
			`its metadata has "Shard_Number"`,
		},
		"a property more":  {single(`"nonce"`, `"x": 1, "nonce"`), `its metadata has "x"`},
		"a property twice": {single(`"nonce"`, `"nonce": "4", "nonce"`), `"nonce" is there twice`},
		"a property in two forms": {
			single(`"nonce"`, `"shardNumber": 0, "nonce"`),
			`shard_number is there twice`,
		},
		"no metadata": {
			files{"a.json": `{"merchant": [{"merchant_id": "a"}]}`},
			"a.json: it has no metadata",
		},
		"metadata of another sort": {
			files{"a.json": `{"metadata": [], "merchant": []}`},
			"its metadata: it is [], want an object",
		},
		"metadata twice": {
			single(`"merchant": [`, `"metadata": {}, "merchant": [`),
			"metadata twice",
		},
		"another list": {
			single(`"merchant":`, `"merchants":`),
			`it has "merchants", and none of the lists`,
		},
		"two lists": {
			single(`"merchant": [`, `"service": [], "merchant": [`),
			`it has both "service" and "merchant"`,
		},
		"a list twice": {
			single(`"merchant": [`, `"merchant": [], "merchant": [`),
			`it has both "merchant" and`,
		},
		"no list, and no name": {
			renamed(single(`, "merchant": [`+aAndB+"]", ""), "a.json"),
			"so its feed is unknown",
		},
		"a list that is none": {
			single("["+aAndB+"]", `{}`),
			"want a list",
		},
		"a record twice": {single(`"b"`, `"a"`), "1 record more than once (the same merchant_id)"},
		"a merchant of two shards": {
			split("merchant", `{"merchant_id": "a", "name": "A"}`, `{"merchant_id": "a", "url": "u"}`),
			"1 record that a.json has, too (the same merchant_id): a record is in one shard",
		},
		"a service of two shards": {
			split("service", `{"merchant_id": "a", "service_id": "1"}`, `{"service_id": "1", "merchant_id": "a"}`),
			"the same merchant_id and service_id",
		},
		"a time of two shards": {
			split("service_availability", slot, strings.Replace(slot, "1577275200", `"1577275200"`, 1)),
			"1 record that a.json has, too",
		},
		"a time of two shards, with other spots": {
			split("service_availability", slot, strings.Replace(slot, `"spots_open": 1`, `"spots_open": 0`, 1)),
			"1 record that a.json has, too (the same merchant_id, service_id, start_sec, duration_sec, resources and " +
				"availability_tag)",
		},
		"a time twice, with defaults": {
			slots(`]}`, `]}, `+strings.Replace(slot, `"spots_total": 1, `,
				`"spots_total": 2, "availability_tag": "", "resources": {"party_size": 0, "room_id": ""}, `, 1)),
			"1 record more than once",
		},
		"regions that each write a complete feed": {
			completeRegions(`"1"`, `"2"`),
			"a.json and b.json are of two availability feeds with one generation_timestamp, and one replaces the other",
		},
		"such regions without nonces": {completeRegions(`null`, `null`), "one replaces the other"},
		"a number as a record": {
			single(`{"merchant_id": "a", "name": "A"}`, "1"),
			"merchant[0]: it is 1, want an object",
		},
		"a null as a record": {
			single(`{"merchant_id": "b", "name": "B"}`, "null"),
			"merchant[1]: it is null, want an object",
		},
		"no UTF-8": {single(`"a"`, "\"\xff\""), "merchant[0]: it is not valid UTF-8"},
		"a field twice": {
			single(`"name": "A"`, `"name": "A", "name": "A"`),
			`merchant[0]: "name" is there twice`,
		},
		"a merchant without ID": {single(`"merchant_id": "a", `, ""), "merchant[0]: it has no merchant_id"},
		"an empty ID":           {single(`"a"`, `""`), "merchant[0]: it has no merchant_id"},
		"a number as an ID":     {single(`"a"`, `7`), "merchant[0]: merchant_id: it is 7, want a string"},
		"a merchant's place": {
			single(`"name": "A"`, `"geo": {"latitude": "north"}`),
			"geo: latitude: it is",
		},
		"a price in words": {
			split("service", `{"merchant_id": "a", "service_id": "1", "price": {"price_micros": "two"}}`,
				`{"merchant_id": "a", "service_id": "2"}`),
			"price: price_micros",
		},
		"a time without merchant": {
			slots(`, "merchant_id": "m"`, ``),
			"availability: [0]: it has no merchant_id",
		},
		"a time without service":  {slots(`"service_id": "1000", `, ``), "it has no service_id"},
		"a time without start":    {slots(`"start_sec": 1577275200, `, ``), "it has no start_sec"},
		"a service by number":     {slots(`"1000"`, `1000`), "service_id: it is 1000, want a string"},
		"a start in milliseconds": {slots(`1577275200`, `1577275200000`), "start_sec: it is 1577275200000"},
		"a duration in words":     {slots(`3600`, `"1h"`), `duration_sec: it is "1h", want an integer`},
		"half a spot": {
			slots(`"spots_open": 1`, `"spots_open": 0.5`),
			"spots_open: it is 0.5, want an integer",
		},
		"spots below none": {slots(`"spots_open": 1`, `"spots_open": -1`), "spots_open: it is -1"},
		"more spots than there are": {
			slots(`"spots_open": 1`, `"spots_open": 2`),
			"spots_open: it is 2, and spots_total is 1",
		},
		"spots as a truth": {
			slots(`"spots_total": 1`, `"spots_total": true`),
			"spots_total: it is true",
		},
		"another mode": {
			slots(`CONFIRMATION_MODE_SYNCHRONOUS`, `SYNCHRONOUS`),
			"confirmation_mode: it is",
		},
		"a mode beyond": {
			slots(`"CONFIRMATION_MODE_SYNCHRONOUS"`, `3`),
			"confirmation_mode: it is 3",
		},
		"times that are no list": {
			files{"a.json": shardOf(0, 1, `"6"`, "service_availability", `{"availability": {}}`)},
			"availability: it is {}, want a list",
		},
		"a party of text": {
			slots(`"spots_total"`, `"resources": {"party_size": "two"}, "spots_total"`),
			"party_size",
		},
		"half a record": {single(`"B"}]}`, `"B"`), "EOF"},
		"half a file": {
			files{"a.json": "raw:" + string(gzipped(strings.Repeat(" ", 9)))[:20]},
			"a.json: ",
		},
		"something more": {single(`"B"}]}`, `"B"}]} {}`), "something follows"},
		"an empty file":  {merged(merchants, files{"a.json": ""}), "a.json: it is empty"},
		"an array":       {files{"a.json": `[{}]`}, `a.json: it begins with '['`},
		"a byte order mark": {
			files{"a.json": "\ufeff" + merchants[merchantFile]},
			"it begins with",
		},
		"no gzip": {files{"a.json.gz": "raw:\x1f\x8bno"}, "a.json.gz: read its gzip"},
		"no feed": {files{"README.md": "# Feeds"}, "there is no feed in"},
		"nothing": {nil, "there is no feed in"},
	} {
		t.Run(what, func(t *testing.T) {
			r := checked(t, writeFolder(t, test.files))
			if problems := strings.Join(r.Problems, "\n"); !strings.Contains(problems, test.want) {
				t.Errorf("the problems are %q, want %q", problems, test.want)
			}
		})
	}
}

// completeRegions returns the feeds of two regions. Each claims that its shards are all shards.
func completeRegions(us, eu string) map[string]string {
	return map[string]string{
		"a.json": shardOf(0, 1, us, "service_availability", slotAt("US_merchant_1", 1577275200)),
		"b.json": shardOf(0, 1, eu, "service_availability", slotAt("EU_merchant_1", 1577620800)),
	}
}

// manyShards returns a feed of n shards.
func manyShards(n int) map[string]string {
	files := make(map[string]string)
	for i := range n {
		files[fmt.Sprintf("availability_feed_1524606581_%03d_of_%03d.json.gz", i+1, n)] = shardOf(i, n, `"1"`,
			"service_availability", slotAt("m", 1577275200+i))
	}
	return files
}

// lost removes one shard.
func lost(files map[string]string, number int) map[string]string {
	delete(files, fmt.Sprintf("availability_feed_%d_%03d_of_003.json.gz", published, number+1))
	return files
}

// renumbered changes the numbers of the shards, so that they start at 1.
func renumbered(all map[string]string) map[string]string {
	for name, text := range all {
		all[name] = strings.NewReplacer(`"shard_number": 0`, `"shard_number": 1`,
			`"shard_number": 1`, `"shard_number": 2`, `"shard_number": 2`, `"shard_number": 3`).Replace(text)
	}
	return all
}

// split returns a feed of two shards with one record each.
func split(list, first, second string) map[string]string {
	return map[string]string{"a.json": shardOf(0, 2, `"1"`, list, first), "b.json": shardOf(1, 2, `"1"`, list, second)}
}

// TestWrongRecords checks a file with many wrong records. The report describes some of them, and
// counts the others.
func TestWrongRecords(t *testing.T) {
	r := checked(t, writeFolder(t, map[string]string{merchantFile: shardOf(0, 1, `"1"`,
		"merchant", strings.Repeat("1, ", 99)+"1")}))
	if len(r.Problems) != 4 || !strings.Contains(r.Problems[3], "97 records more, wrong as well") {
		t.Errorf("the problems are %q, want three, and how many more there are", r.Problems)
	}
}

// TestBytes checks the limit of a file's size. It applies to the size after gzip, whether the file
// is compressed or not.
func TestBytes(t *testing.T) {
	var records []string
	for i := range 300 {
		records = append(records, fmt.Sprintf(`{"merchant_id": "%x", "name": "N"}`, sha256.Sum256(fmt.Append(nil, i))))
	}
	text := shardOf(0, 1, `"1"`, "merchant", records...)
	zipped := int64(len(gzipped(text)))
	for _, name := range []string{"a.json", "a.json.gz"} {
		dir := writeFolder(t, map[string]string{name: text})
		for most, want := range map[int64]int{zipped: 0, zipped - 1: 1} {
			r, err := checkFolder(dir, most, maxShards, time.Unix(published, 0))
			if err != nil || len(r.Problems) != want || r.Feeds[0].Bytes != zipped {
				t.Errorf("%s of %d bytes, up to %d: %+v, %v, want %d problems", name, zipped, most, r, err, want)
			}
		}
	}
}

// TestAgreedShards checks that there is no advice about the number of shards if the flag allows
// more.
func TestAgreedShards(t *testing.T) {
	dir := writeFolder(t, manyShards(25))
	for most, want := range map[int]int{1: 1, 24: 1, 25: 0} {
		r, err := checkFolder(dir, maxShardBytes, most, time.Unix(published, 0))
		if err != nil || len(r.Problems) > 0 || len(r.Advice) != want {
			t.Errorf("25 shards, and %d were agreed on: %+v, %v, want %d pieces of advice", most, r, err, want)
		}
	}
}

// TestLinks checks a folder, a file, and symbolic links to both. All must be read. A path that does
// not exist must be an error.
func TestLinks(t *testing.T) {
	dir := writeFolder(t, map[string]string{"in/merchant_feed_1524606581_001_of_001.json.gz": single("",
		"")[merchantFile]})
	file := filepath.Join(dir, "in", merchantFile)
	links := t.TempDir()
	for name, to := range map[string]string{"folder": filepath.Join(dir, "in"), merchantFile: file} {
		if err := os.Symlink(to, filepath.Join(links, name)); err != nil {
			t.Skip(err)
		}
	}
	for _, path := range []string{dir, file, links, filepath.Join(links, "folder")} {
		if r := checked(t, path); len(r.Problems) > 0 || len(r.Feeds) != 1 {
			t.Errorf("%s: %+v", path, r)
		}
	}
	if _, err := feed(t, "-check", filepath.Join(dir, "none")); err == nil {
		t.Error("a folder that is not there is no error")
	}
}
