package dsemu

import (
	"math/rand/v2"
	"sync"
	"time"
)

// A database holds the entities of one project's database, and its open
// transactions.
type database struct {
	project, id string
	opts        Options

	mu           sync.Mutex
	namespaces   map[string]map[string]*kind
	lastCommit   int64    // microseconds
	log          []change // commits that an open transaction may not have seen
	transactions map[string]*transaction
	lastID       uint64 // of a transaction
	ids          *rand.Rand
}

// A change says that a commit wrote a record.
type change struct {
	at     int64
	kind   *kind
	record *record
}

func newDatabase(project, id string, opts Options) *database {
	return &database{
		project:      project,
		id:           id,
		opts:         opts,
		namespaces:   make(map[string]map[string]*kind),
		transactions: make(map[string]*transaction),
		lastCommit:   time.Now().UnixMicro(),
		ids:          rand.New(rand.NewPCG(opts.Seed, 0)),
	}
}

// kind returns the kind in a namespace, or nil if nothing was ever put there.
func (db *database) kind(namespace, name string) *kind {
	return db.namespaces[namespace][name]
}

func (db *database) addKind(namespace, name string) *kind {
	kinds := db.namespaces[namespace]
	if kinds == nil {
		kinds = make(map[string]*kind)
		db.namespaces[namespace] = kinds
	}
	k := kinds[name]
	if k == nil {
		k = &kind{name: name}
		kinds[name] = k
	}
	return k
}

// get returns the version of an entity that a read at a time sees.
func (db *database) get(key storedKey, at int64) (version, bool) {
	k := db.kind(key.namespace, key.kind)
	if k == nil {
		return version{}, false
	}
	r, ok := k.records.Get(key.path)
	if !ok {
		return version{}, false
	}
	return r.at(at)
}

// nextCommit returns the time of the commit that is being made: the clock's,
// but after every earlier commit's.
func (db *database) nextCommit(now time.Time) int64 {
	return max(now.UnixMicro(), db.lastCommit+1)
}

// horizon is the time before which no read looks.
func (db *database) horizon() int64 {
	h := db.lastCommit
	for _, tx := range db.transactions {
		if !tx.aborted {
			h = min(h, tx.snapshot)
		}
	}
	return h
}

// trim forgets the commits that every open transaction has seen.
func (db *database) trim() {
	h := db.horizon()
	n := 0
	for ; n < len(db.log) && db.log[n].at <= h; n++ {
		db.log[n].kind.prune(db.log[n].record, h)
	}
	if n > 0 {
		db.log = append(db.log[:0:0], db.log[n:]...)
	}
}
