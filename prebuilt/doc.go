// Package prebuilt has mappers that need no code: a service registers them by one line, and
// operators start them by their names, over the jobs API or the command line:
//
//	mappers := append([]mapper.AnyMapper{yours}, prebuilt.Mappers()...)
//	engine, err := mapper.NewEngine(client, queue, &mapper.EngineOptions{Mappers: mappers})
//
//	scattermap start count --kind Account --params '{"by": "country"}'
//	scattermap start set --kind Account --params '{"property": "plan", "value": "free"}' --filter 'plan IS NULL'
//	scattermap start check --kind Account --params '{"condition": "Balance >= 0"}'
//
// Their parameters are checked when a job starts or is planned: what is unknown, missing or null is
// refused by its name. A name of a property with a dot leads into an entity inside, or has the dot
// in it, as in a filter; set, rename and drop change properties of the entity itself, and have an
// entity fail in which the name leads inside.
//
// [Erase] erases a namespace, or a tenant that is a value in a property, has the records of all
// jobs forget it, and signs that; it is registered by itself, as it needs a key, and a place for
// its certificates.
//
// They are updates and visits as any: exact, resumable, with failures and rehearsals. The command
// line makes those that destroy something rehearsals, unless it is told to execute them. Whoever
// may start jobs of a service that registers them may delete its entities.
package prebuilt
