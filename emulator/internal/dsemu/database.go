package dsemu

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A database holds the entities of one project's database, and its open
// transactions.
type database struct {
	model.Database
	opts Options

	mu           sync.Mutex
	namespaces   map[string]map[string]*store.Kind
	lastCommit   int64    // microseconds
	log          []change // commits that a read may not have seen, oldest first
	trimmed      int      // of them, those that are done with
	transactions map[string]*transaction
	expiredAt    time.Time      // expired ones were looked for
	lastID       *atomic.Uint64 // of a transaction; the server's, so that no id comes twice
	closed       bool           // by a reset
	ids          *rand.Rand
	reservedIDs  map[string]bool // ids of keys that are not to be allocated
}

// A change says that a commit wrote a record.
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
		namespaces:   make(map[string]map[string]*store.Kind),
		transactions: make(map[string]*transaction),
		lastCommit:   time.Now().UnixMicro(),
		ids:          rand.New(rand.NewPCG(opts.Seed, 0)),
		reservedIDs:  make(map[string]bool),
	}
}

// kind returns the kind in a namespace, or nil if nothing was ever put there.
func (db *database) kind(namespace, name string) *store.Kind {
	return db.namespaces[namespace][name]
}

func (db *database) addKind(namespace, name string) *store.Kind {
	kinds := db.namespaces[namespace]
	if kinds == nil {
		kinds = make(map[string]*store.Kind)
		db.namespaces[namespace] = kinds
	}
	k := kinds[name]
	if k == nil {
		k = &store.Kind{Name: name}
		kinds[name] = k
	}
	return k
}

// get returns the version of an entity that a read at a time sees.
func (db *database) get(key model.Key, at int64) (store.Version, bool) {
	k := db.kind(key.Namespace, key.Kind)
	if model.Reserved(key.Kind) {
		k = db.describe(key.Namespace, key.Kind, at)
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

// nextCommit returns the time of the commit that is being made: the clock's,
// but after every earlier commit's.
func (db *database) nextCommit(now time.Time) int64 {
	return max(now.UnixMicro(), db.lastCommit+1)
}

// horizon is the time before which no read looks.
func (db *database) horizon(now time.Time) int64 {
	h := min(db.lastCommit, now.Add(-db.opts.Retention).UnixMicro())
	for _, tx := range db.transactions {
		if !tx.aborted {
			h = min(h, tx.snapshot)
		}
	}
	return h
}

// trim forgets what no read looks at any more.
func (db *database) trim(now time.Time) {
	h := db.horizon(now)
	for ; db.trimmed < len(db.log) && db.log[db.trimmed].at <= h; db.trimmed++ {
		db.log[db.trimmed].kind.Prune(db.log[db.trimmed].record, h)
		db.log[db.trimmed] = change{at: db.log[db.trimmed].at}
	}
	if db.trimmed > len(db.log)/2 {
		db.log = append(db.log[:0:0], db.log[db.trimmed:]...)
		db.trimmed = 0
	}
}

// since returns the changes after a time.
func (db *database) since(at int64) []change {
	i, _ := slices.BinarySearchFunc(db.log, at+1, func(c change, at int64) int { return cmp.Compare(c.at, at) })
	return db.log[max(i, db.trimmed):]
}
