// Package export writes entities to files, each entity exactly once, in any bucket that
// gocloud.dev/blob can open.
//
// An [Export] is a mapper whose function makes a record of an entity. It runs as three jobs of
// package mapper, one after the other:
//
//  1. Each page of entities is written as a part, under a name that no other attempt has. The
//     page's commit records the part. So each record is in exactly one recorded part, even if a
//     process dies or wakes late.
//  2. The parts are joined into files of even size, without compressing them again.
//  3. All parts are deleted, recorded or not. Then a manifest lists the files.
//
// Each run writes to its own folder, and writes a name only once. The manifest is written last, and
// with it the export has succeeded. From then on nothing that it names changes, however late a
// write or deletion takes effect. [ReadManifest] finds the last manifest of a folder.
//
// A task holds one part in memory: about 4 MiB of entities. docs/export.md describes formats, types
// and readers.
package export
