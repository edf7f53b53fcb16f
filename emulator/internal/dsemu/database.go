package dsemu

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/tidwall/btree"

	"github.com/scattermap/scattermap/emulator/internal/metadata"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A database has the entities of one of a project's databases, and its open transactions.
type database struct {
	model.Database
	opts Options

	mu         mutex
	totals     store.Totals
	namespaces btree.Map[string, *metadata.Kinds]
	lastCommit int64    // time of the last commit, in microseconds since 1970
	log        []change // commits' writes, oldest first; trim removes old ones
	trimmed    int      // number of changes at the start of log that trim has already dropped
	// time in microseconds; reads of earlier times are refused, because old versions were dropped
	// to save memory
	forgotten    int64
	scans        map[int64]int // number of running scans by the time whose state they read, in microseconds
	transactions map[string]*transaction
	expiredAt    time.Time // when expire was last called
	trimmedAt    time.Time // when trim last dropped something
	// ID of the last transaction; all databases of the server share it, so that each ID is unique
	lastID      *atomic.Uint64
	closed      bool // whether the server was reset, so that calls to this database fail
	ids         *rand.Rand
	reservedIDs map[string]bool // IDs that were reserved, and that allocate does not use
}

// A change records that the commit at a time wrote a record.
type change struct {
	at     int64
	kind   *store.Kind
	record *store.Record
}

func newDatabase(project, id string, opts Options, lastID *atomic.Uint64) *database {
	return &database{
		lastID:       lastID,
		Database:     model.Database{Project: project, ID: id},
		opts:         opts,
		transactions: make(map[string]*transaction),
		lastCommit:   time.Now().UnixMicro(),
		ids:          rand.New(rand.NewPCG(opts.Seed, 0)),
		reservedIDs:  make(map[string]bool),
		scans:        make(map[int64]int),
	}
}

// kind returns the kind in a namespace, or nil if it never had an entity.
func (db *database) kind(namespace, name string) *store.Kind {
	if kinds, ok := db.namespaces.Get(namespace); ok {
		k, _ := kinds.Get(name)
		return k
	}
	return nil
}

func (db *database) addKind(namespace, name string) *store.Kind {
	all, ok := db.namespaces.Get(namespace)
	if !ok {
		all = new(metadata.Kinds)
		db.namespaces.Set(namespace, all)
	}
	k, ok := all.Get(name)
	if !ok {
		k = store.NewKind(name, &db.totals)
		all.Set(name, k)
	}
	return k
}

// get returns the version that an entity had at a time, in microseconds since 1970. It returns
// false if the entity did not exist then.
func (db *database) get(key model.Key, at int64) (store.Version, bool) {
	k := db.kind(key.Namespace, key.Kind)
	if model.Reserved(key.Kind) {
		k, _ = db.describe(key.Namespace, key.Kind, at, metadata.Span{From: key.Path, To: key.Path + "\x00"}, 1)
	}
	if k == nil {
		return store.Version{}, false
	}
	r, ok := k.Records.Get(key.Path)
	if !ok {
		return store.Version{}, false
	}
	return r.At(at)
}

// describe returns entities of a reserved kind, which describe the database: see
// [metadata.Database.Describe].
func (db *database) describe(
	namespace, name string, at int64, in metadata.Span, most int,
) (k *store.Kind, next string) {
	described := &metadata.Database{
		Database: db.Database, Namespaces: &db.namespaces, Scatter: db.opts.Scatter, Lock: &db.mu,
	}
	return described.Describe(namespace, name, at, in, most)
}

// nextCommit returns the time of the next commit. It is now, or the first microsecond after the
// last commit if that is later.
func (db *database) nextCommit(now time.Time) int64 {
	return max(now.UnixMicro(), db.lastCommit+1)
}

// needed returns the earliest time whose state an open transaction or a running query reads, in
// microseconds since 1970. If there are none, it is the time of the last commit.
func (db *database) needed() int64 {
	h := db.lastCommit
	for _, tx := range db.transactions {
		if !tx.aborted {
			h = min(h, tx.snapshot)
		}
	}
	for at := range db.scans {
		h = min(h, at)
	}
	return h
}

// scan registers a query that reads the state at a time. The database keeps all versions that the
// query reads until the caller calls end.
func (db *database) scan(at int64) (end func()) {
	db.scans[at]++
	return func() {
		if db.scans[at]--; db.scans[at] == 0 {
			delete(db.scans, at)
		}
	}
}

// The largest amount of work of one call of trim. A call handles up to trimChanges changes, or up
// to trimVersions changes that have an old version to drop.
const (
	trimChanges  = 1024
	trimVersions = 64
)

// trim drops old entries of the log, and old versions of entities. It drops what no allowed read
// needs any more. If the remaining old versions exceed [Options.VersionMemory], it drops more, from
// the oldest on. The database then refuses reads of the times before. It returns true if there is
// more to drop.
func (db *database) trim(now time.Time) (more bool) {
	if db.trimmed == len(db.log) {
		return false
	}
	db.trimmedAt = now
	needed := db.needed()
	h := min(needed, now.Add(-db.opts.Retention).UnixMicro())
	for work := 0; db.trimmed < len(db.log); db.trimmed++ {
		c := db.log[db.trimmed]
		early := c.at > h
		if early && (c.at > needed || db.totals.Old <= db.opts.VersionMemory) {
			break
		}
		if work >= trimChanges {
			more = true
			break
		}
		if early {
			db.forgotten = c.at
		}
		work += 1 + c.kind.Prune(c.record, max(c.at, h))*trimChanges/trimVersions
		db.log[db.trimmed] = change{at: c.at}
	}
	if db.trimmed > len(db.log)/2 {
		db.log = append(db.log[:0:0], db.log[db.trimmed:]...)
		db.trimmed = 0
	}
	return more
}

// tidy calls trim until there is nothing more to drop. It locks the database for short times, so
// that other calls can run in between.
func (db *database) tidy() {
	for more := true; more; {
		db.mu.Lock()
		more = db.trim(time.Now())
		db.mu.Unlock()
	}
}

// since returns the changes that were committed after a time.
func (db *database) since(at int64) []change {
	i, _ := slices.BinarySearchFunc(db.log, at+1, func(c change, at int64) int { return cmp.Compare(c.at, at) })
	return db.log[max(i, db.trimmed):]
}
