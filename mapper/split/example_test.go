package split_test

import (
	"context"
	"fmt"
	"log"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/emulator"
	_ "github.com/scattermap/scattermap/internal/testflag" // every test package below mapper/ must know its flags
	"github.com/scattermap/scattermap/mapper"
	"github.com/scattermap/scattermap/mapper/split"
)

// ExampleQuery cuts a kind of 400 entities into four parts, and reads each part.
func ExampleQuery() {
	ctx := context.Background()
	e, err := emulator.Start(nil)
	if err != nil {
		log.Fatal(err)
	}
	defer e.Close()
	client, err := e.DatastoreClient(ctx, "my-project")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	type account struct{ Balance int }
	keys, accounts := make([]*datastore.Key, 400), make([]account, 400)
	for i := range keys {
		keys[i] = datastore.NameKey("Account", fmt.Sprintf("user-%03d", i), nil)
	}
	if _, err := client.PutMulti(ctx, keys, accounts); err != nil {
		log.Fatal(err)
	}

	parts, err := split.Query(ctx, client, mapper.Query{Kind: "Account"}, 4, &split.Options{Count: true})
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range parts {
		q, err := p.Query.DatastoreQuery()
		if err != nil {
			log.Fatal(err)
		}
		var read []account
		found, err := client.GetAll(ctx, q, &read)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(p.Entities, "counted,", len(read), "read, from", found[0].Name)
	}
	// Output:
	// 100 counted, 100 read, from user-000
	// 100 counted, 100 read, from user-100
	// 100 counted, 100 read, from user-200
	// 100 counted, 100 read, from user-300
}
