// Package prebuilt has mappers that need no code. A service registers them in one line, and
// operators start them by name, through the jobs API or the command line:
//
//	mappers := append([]mapper.AnyMapper{yours}, prebuilt.Mappers()...)
//	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: mappers})
//
//	scattermap start count --kind Account --params '{"by": "country"}'
//	scattermap start set --kind Account --params '{"property": "plan", "value": "free"}' --filter 'plan IS NULL'
//	scattermap start check --kind Account --params '{"condition": "Balance >= 0"}'
//
// A caller who may start jobs of such a service may also delete its entities. The command line
// rehearses a mapper that overwrites or deletes data, unless it gets --execute.
//
// They are updates and visits like any other: exact and resumable, with failures and rehearsals. A
// start or plan checks their parameters, and names what is unknown, missing or null.
//
// A dot in the name of a property leads into an embedded entity, or is part of the name, as in a
// filter. Set, rename and drop change only properties of the entity itself. If the name leads into
// an embedded entity, they record a failure.
//
// Erase makes a mapper that erases a namespace, or a tenant whose name is the value of a property.
// It also removes the tenant from the records of all jobs, and signs a certificate. [Mappers] does
// not contain it, because it needs a key and a place for certificates.
package prebuilt
