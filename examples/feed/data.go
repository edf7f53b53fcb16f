package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"
)

// tagOf returns the tag of a slot: a hash, which is hard to guess and to compress.
func tagOf(merchant, service, slot int) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d/%d/%d", merchant, service, slot))
	return hex.EncodeToString(sum[:16])
}

// fill writes the merchants of a region, their services, and the services' slots. Two of twelve
// slots are in the past.
func fill(ctx context.Context, client *datastore.Client, c config, region int, now time.Time) error {
	var keys []*datastore.Key
	var all []any
	put := func(key *datastore.Key, e any) error {
		keys, all = append(keys, key), append(all, e)
		if len(keys) < 500 {
			return nil
		}
		_, err := client.PutMulti(ctx, keys, all)
		keys, all = keys[:0], all[:0]
		return err
	}
	for i := region; i < c.merchants; i += c.regions {
		merchant := datastore.NameKey("Merchant", fmt.Sprintf("merchant-%06d", i), nil)
		street := fmt.Sprintf("Main Street %d", i%100)
		if err := put(merchant, &Merchant{fmt.Sprintf("Salon %d", i), street, "Springfield", "US"}); err != nil {
			return err
		}
		for j := range 2 {
			service := datastore.NameKey("Service", fmt.Sprintf("service-%d", j), merchant)
			if err := put(service, &Service{[]string{"Haircut", "Manicure"}[j], int64(2000 + 100*j)}); err != nil {
				return err
			}
			for k := range 12 {
				start := now.Truncate(time.Second).Add(time.Duration(k-2)*24*time.Hour + 12*time.Hour)
				slot := &Slot{start, 30, 4, int64(i+k) % 5, tagOf(i, j, k)}
				if err := put(datastore.IDKey("Slot", int64(k+1), service), slot); err != nil {
					return err
				}
			}
		}
	}
	if len(keys) == 0 {
		return nil
	}
	_, err := client.PutMulti(ctx, keys, all)
	return err
}

// laterCents is the price of a service after the time of the feeds.
const laterCents = 99_900

// meddle changes the database after the time of the feeds, so the feeds must not show the changes.
// It adds a merchant with a service, changes the price of another service, and takes all places of
// a slot.
func meddle(ctx context.Context, client *datastore.Client, region int) error {
	merchant := datastore.NameKey("Merchant", fmt.Sprintf("merchant-%06d", region), nil)
	service := datastore.NameKey("Service", "service-0", merchant)
	first := datastore.IDKey("Slot", 3, service)
	var slot Slot
	if err := client.Get(ctx, first, &slot); err != nil && !errors.Is(err, datastore.ErrNoSuchEntity) {
		return err
	}
	slot.Open = 0
	late := datastore.NameKey("Merchant", fmt.Sprintf("opened-later-%d", region), nil)
	lateService := datastore.NameKey("Service", "service-0", late)
	_, err := client.PutMulti(ctx, []*datastore.Key{first, service, late, lateService},
		[]any{&slot, &Service{"Haircut", laterCents}, &Merchant{Name: "Opened later"}, &Service{"Haircut", laterCents}})
	return err
}
