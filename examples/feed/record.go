package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"
)

// Types of the records in feeds, with the fields that are checked:
// https://developers.google.com/actions-center/verticals/reservations/e2e/reference/feeds/availability-feed
// and the pages beside it. Other fields are ignored.
var (
	merchantType = message(map[string]valueType{
		"merchant_id": text, "name": text, "telephone": text, "url": text, "category": text,
		"geo": message(map[string]valueType{
			"latitude": double, "longitude": double, "unstructured_address": text,
			"address": message(map[string]valueType{
				"country": text, "locality": text, "region": text, "postal_code": text, "street_address": text,
			}),
		}),
	}, "merchant_id")

	localizedType = message(map[string]valueType{
		"value":           text,
		"localized_value": list(message(map[string]valueType{"locale": text, "value": text})),
	})

	serviceType = message(map[string]valueType{
		"merchant_id": text, "service_id": text, "name": text, "description": text,
		"localized_service_name": localizedType, "localized_description": localizedType,
		"price": message(map[string]valueType{"price_micros": int64s, "currency_code": text}),
	}, "merchant_id", "service_id")

	resourcesType = message(map[string]valueType{
		"staff_id": text, "staff_name": text, "room_id": text, "room_name": text,
		"party_size": integer(0, math.MaxInt32),
	})

	slotType = message(map[string]valueType{
		"merchant_id": text, "service_id": text, "start_sec": seconds, "duration_sec": counts,
		"spots_total": counts, "spots_open": counts, "availability_tag": text, "resources": resourcesType,
		"payment_option_id": list(text), "ticket_type_id": list(text),
		"confirmation_mode": enum("CONFIRMATION_MODE_UNSPECIFIED", "CONFIRMATION_MODE_SYNCHRONOUS",
			"CONFIRMATION_MODE_ASYNCHRONOUS"),
		"recurrence": message(map[string]valueType{"repeat_until_sec": seconds, "repeat_every_sec": counts}),
	}, "merchant_id", "service_id", "start_sec")

	availabilityType = message(map[string]valueType{
		"availability":             list(slotOfFeed),
		"start_timestamp_restrict": int64s, "end_timestamp_restrict": int64s, "duration_restrict_sec": int64s,
		"merchant_id_restrict": text, "service_id_restrict": text, "resources_restrict": resourcesType,
	})
)

// slotOfFeed is the type of a slot in an availability feed.
func slotOfFeed(v any) (any, error) {
	read, err := slotType(v)
	if err != nil {
		return nil, err
	}
	slot := read.(map[string]any)
	total, open := slot["spots_total"], slot["spots_open"]
	if total != nil && open != nil && open.(int64) > total.(int64) {
		return nil, fmt.Errorf("spots_open: it is %d, and spots_total is %d", open, total)
	}
	return slot, nil
}

// A recordHash is the hash of a record's ID. The check keeps hashes, so that a feed need not fit
// into memory.
type recordHash [16]byte

// records returns the records in an element of a feed's list: the element itself, or each of its
// slots.
func (k kind) records(element any) []any {
	if k.list != "service_availability" {
		return []any{element}
	}
	slots, _ := element.(map[string]any)["availability"].([]any)
	return slots
}

// hash returns the hash of the fields that identify a record. A field with its default value counts
// as missing.
func (k kind) hash(record any) recordHash {
	fields, id := record.(map[string]any), make([]any, len(k.id))
	for i, name := range k.id {
		id[i] = withoutDefaults(fields[name])
	}
	encoded, _ := json.Marshal(id) // can't fail: the values come from JSON
	sum := sha256.Sum256(encoded)
	return recordHash(sum[:16])
}

// withoutDefaults returns a value without fields that have their default values. It returns nil if
// the value itself is a default.
func withoutDefaults(v any) any {
	switch v := v.(type) {
	case string:
		if v == "" {
			return nil
		}
	case int64:
		if v == 0 {
			return nil
		}
	case map[string]any:
		set := make(map[string]any)
		for name, field := range v {
			if field = withoutDefaults(field); field != nil {
				set[name] = field
			}
		}
		if len(set) == 0 {
			return nil
		}
		return set
	}
	return v
}

// lacks returns the fields that the reference requires and that a record lacks. A field whose value
// is 0 is not missing.
func (k kind) lacks(record any) (missing []string) {
	fields := record.(map[string]any)
	for _, name := range k.wanted {
		if fields[name] == nil {
			missing = append(missing, name)
		}
	}
	return missing
}
