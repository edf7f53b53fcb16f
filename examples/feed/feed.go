package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"gocloud.dev/blob"

	"github.com/scattermap/scattermap/export"
	"github.com/scattermap/scattermap/mapper"
)

// Rules of sharded feeds that Google's partners deliver
// (https://developers.google.com/actions-center/verticals/reservations/e2e/reference/feeds/sharding).
// A file has up to 200 MB after compression. A feed has up to 20 files, called shards. A record is
// in one of them. All shards of a feed have the same nonce and time.
const (
	maxShardBytes = 200 * 1000 * 1000
	maxShards     = 20
	instruction   = "PROCESS_AS_COMPLETE"
)

// Metadata is what each file of a feed has at its start.
type Metadata struct {
	ProcessingInstruction string `json:"processing_instruction"`
	ShardNumber           int    `json:"shard_number"` // number of the file, from 0
	TotalShards           int    `json:"total_shards"`
	// Nonce identifies the feed. It is a text of digits, because some readers of JSON round large
	// numbers.
	Nonce               string `json:"nonce"`
	GenerationTimestamp int64  `json:"generation_timestamp"` // time of the feed's data, in seconds since 1970
}

// A Generation has the parameters of one region's export of a feed: the nonce and time that all
// files of the feed have, and the numbers of the region's shards. These numbers are known when all
// regions have counted their shards.
type Generation struct {
	Nonce     string `json:"nonce"`
	Timestamp int64  `json:"timestamp"` // the time of the feed's data, in seconds since 1970
	First     int    `json:"first"`     // number of the region's first shard
	Total     int    `json:"total"`     // number of shards of all regions
}

func (g Generation) metadata(f export.File) Metadata {
	return Metadata{instruction, g.First + f.Index, g.Total, g.Nonce, g.Timestamp}
}

// A kind is a kind of feed: merchants, services or availability. A set of feeds has one feed of
// each kind.
type kind struct {
	name    string    // the kind's name in file names
	list    string    // the property of a file that contains the records
	element valueType // the type of the records in that list
	id      []string  // the fields that identify a record
	wanted  []string  // fields that the reference requires of a record; their value may be 0
}

var kinds = []kind{
	{"merchant", "merchant", merchantType, []string{"merchant_id"}, []string{"name"}},
	{"service", "service", serviceType, []string{"merchant_id", "service_id"}, nil},
	{"availability", "service_availability", availabilityType, []string{"merchant_id", "service_id", "start_sec",
		"duration_sec", "resources", "availability_tag"}, []string{"duration_sec", "spots_total"}},
}

// tells returns the names of the fields that identify a record, as a text for errors.
func (k kind) tells() string {
	last := len(k.id) - 1
	if last == 0 {
		return k.id[0]
	}
	return strings.Join(k.id[:last], ", ") + " and " + k.id[last]
}

// shardName returns the name of a shard. Numbers in names start at 1.
func (k kind) shardName(m Metadata) string {
	return fmt.Sprintf("%s_feed_%d_%03d_of_%03d.json.gz", k.name, m.GenerationTimestamp, m.ShardNumber+1, m.TotalShards)
}

// options returns the options of the export that writes a feed of this kind.
func (k kind) options(maxBytes int64) *export.Options {
	of := func(f export.File) Metadata {
		var g Generation
		_ = json.Unmarshal(f.Params, &g) // can't fail: a Generation was encoded
		return g.metadata(f)
	}
	return &export.Options{
		Format: export.JSON, Compression: export.Gzip, FileBytes: maxBytes,
		Name: func(f export.File) string { return k.shardName(of(f)) },
		Wrap: func(f export.File) (head, tail string) {
			m, _ := json.Marshal(of(f)) // can't fail: Metadata can always be encoded
			return fmt.Sprintf("{\"metadata\":%s,\n%q:[\n", m, k.list), "\n]}\n"
		},
	}
}

// Entities of the database.
type (
	// A Merchant is a place that offers services.
	Merchant struct {
		Name, Street, City, Country string
	}
	// A Service is a service of a merchant. The merchant is its parent.
	Service struct {
		Name  string
		Cents int64 `datastore:",noindex"`
	}
	// A Slot is a time at which a service can be booked. The service is its parent.
	Slot struct {
		Start   time.Time
		Minutes int64
		Spots   int64  // number of places
		Open    int64  // number of free places
		Tag     string `datastore:",noindex"` // identifies the slot in a booking
	}
)

// Types of the records in files.
type (
	merchantRecord struct {
		ID       string `json:"merchant_id"`
		Name     string `json:"name"`
		Category string `json:"category"`
		Geo      geo    `json:"geo"`
	}
	geo struct {
		Address address `json:"address"`
	}
	address struct {
		Country  string `json:"country"`
		Locality string `json:"locality"`
		Street   string `json:"street_address"`
	}
	serviceRecord struct {
		Merchant string `json:"merchant_id"`
		ID       string `json:"service_id"`
		Name     name   `json:"localized_service_name"`
		Price    price  `json:"price"`
	}
	name struct {
		Value string `json:"value"`
	}
	price struct {
		Micros   int64  `json:"price_micros"`
		Currency string `json:"currency_code"`
	}
	availabilityRecord struct {
		Availability []availability `json:"availability"`
	}
	availability struct {
		Total    int64  `json:"spots_total"`
		Open     int64  `json:"spots_open"`
		Duration int64  `json:"duration_sec"`
		Service  string `json:"service_id"`
		Start    int64  `json:"start_sec"`
		Merchant string `json:"merchant_id"`
		Mode     string `json:"confirmation_mode"`
		Tag      string `json:"availability_tag"`
	}
)

func merchantOf(_ context.Context, e *mapper.Entity[Merchant], _ Generation) (merchantRecord, error) {
	m := e.Value
	return merchantRecord{e.Key.Name, m.Name, "Beauty Salon", geo{address{m.Country, m.City, m.Street}}}, nil
}

func serviceOf(_ context.Context, e *mapper.Entity[Service], _ Generation) (serviceRecord, error) {
	s := e.Value
	return serviceRecord{e.Key.Parent.Name, e.Key.Name, name{s.Name}, price{s.Cents * 10_000, "USD"}}, nil
}

// slotOf returns the record of a slot. It leaves out slots that can no longer be booked.
func slotOf(_ context.Context, e *mapper.Entity[Slot], g Generation) (availabilityRecord, error) {
	s := e.Value
	if s.Start.Unix() < g.Timestamp {
		return availabilityRecord{}, mapper.Skip
	}
	service := e.Key.Parent
	return availabilityRecord{[]availability{{
		Total: s.Spots, Open: s.Open, Duration: 60 * s.Minutes, Service: service.Name, Start: s.Start.Unix(),
		Merchant: service.Parent.Name, Mode: "CONFIRMATION_MODE_SYNCHRONOUS", Tag: s.Tag,
	}}}, nil
}

// feeds are the exports of one region, one for each kind of feed, in the order of the kinds.
type feeds struct {
	bucket  *blob.Bucket
	exports []*export.Export[Generation]
}

func newFeeds(bucket *blob.Bucket, maxBytes int64) (feeds, error) {
	merchants, err := export.New("merchants", bucket, merchantOf, kinds[0].options(maxBytes))
	services, bad := export.New("services", bucket, serviceOf, kinds[1].options(maxBytes))
	slots, worse := export.New("availability", bucket, slotOf, kinds[2].options(maxBytes))
	return feeds{bucket, []*export.Export[Generation]{merchants, services, slots}}, errors.Join(err, bad, worse)
}

func (f feeds) mappers() (all []mapper.AnyMapper) {
	for _, x := range f.exports {
		all = append(all, x.Mappers()...)
	}
	return all
}

// queries returns the queries of the feeds, which all read the database as of the same time.
func queries(at time.Time) []mapper.Query {
	return []mapper.Query{
		{Kind: "Merchant", ReadTime: at}, {Kind: "Service", ReadTime: at}, {Kind: "Slot", ReadTime: at},
	}
}
