// Package prebuilt has mappers that need no code. A service registers them in one line. Operators
// then start them by name, through the jobs API or the command line:
//
//	mappers := append([]mapper.AnyMapper{yours}, prebuilt.Mappers()...)
//	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: mappers})
//
//	scattermap start count --kind Account --params '{"by": "country"}'
//	scattermap start set --kind Account --params '{"property": "plan", "value": "free"}' \
//	    --filter 'plan IS NULL'
//	scattermap start check --kind Account --params '{"condition": "Balance >= 0"}'
//
// A caller who may start jobs of such a service may also overwrite and delete its entities. Without
// --execute, the command line only rehearses mappers for which Destroys is true.
//
// The mappers are made by mapper.Update and mapper.Visit. So they have the same guarantees as your
// own mappers, including rehearsals of an Update. Starts and plans check their parameters, and name
// each one that is unknown, missing or null.
//
// A query with KeysOnly suits only "delete", and "count" without a property. The other mappers need
// the entities: their jobs are refused, or have failures.
//
// A dot in a property's name is either part of the name, or leads into an embedded entity, as in a
// filter. "set", "rename" and "drop" change only properties of the entity itself. If a name leads
// into an embedded entity, they record a failure.
//
// [Erase] makes a mapper that erases a namespace, or a tenant: all entities with a given value in a
// given property. It also removes the tenant from the records of all jobs, and signs a certificate.
// [Mappers] does not contain it, because it needs a key and a place for certificates.
package prebuilt
