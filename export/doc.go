// Package export writes entities to files, each exactly once, in any bucket that gocloud.dev/blob
// can open.
//
// An [Export] is a mapper of a function that makes a record of an entity. Its job goes through
// three stages, each of which is a job of package mapper, spread over as many tasks as there is
// work:
//
//  1. Each page of entities is written as a part, under a name that no other attempt has. The
//     page's commit records the part. So the recorded parts have each record once, whatever else
//     was written by processes that died, or were too late.
//  2. Parts are joined into files of even size, without being compressed again.
//  3. What is not a file is deleted: all parts, recorded or not. Then a manifest lists the files.
//
// A run of an export writes to a folder of its own, and a name is written once. The manifest there
// comes after all else, and decides that the export has succeeded: from then on nothing that it
// names changes, however late a write or a deletion takes effect. [ReadManifest] finds the last one
// of a folder.
//
// Memory is bounded by the parts, for each task: some 4 MiB of entities, however many there are.
package export
