// Package export writes entities to files, each entity exactly once, in any bucket that
// gocloud.dev/blob can open.
//
// An [Export] is a mapper whose function makes a record of an entity. [New] defines one, and
// [NewEntities] defines an export of whole entities. [Export.Start] starts a [Run], and [Run.Wait]
// returns its [Manifest].
//
// A run consists of three jobs of package mapper, one after the other:
//
//  1. Each page of entities is written as a part, under a name that no other attempt uses. The
//     page's commit records the part. So each record is in exactly one recorded part, even if a
//     process dies, or stands still and continues later.
//  2. The parts are joined into files of even size, without compressing them again.
//  3. All parts are deleted, recorded or not. Then a manifest lists the files.
//
// Each run writes to a folder of its own, and writes each name only once. It writes the manifest
// last: an export with a manifest has succeeded. After that, its files never change: no delayed
// write or deletion of the run touches them. [ReadManifest] finds the last manifest of a folder.
//
// A task holds one part in memory: about 4 MiB of entities. docs/export.md describes formats, types
// and readers.
package export
