package dsemu

import (
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
	"github.com/scattermap/scattermap/emulator/internal/store"
)

// A draft is an entity during a commit, as changed by the mutations that have been applied so far.
type draft struct {
	key     model.Key
	before  store.Version
	existed bool

	exists     bool
	changed    bool // whether the entity differs from the stored one
	after      entity.Form
	last       string // the operation of the last mutation
	written    bool   // whether at least one mutation had no conflict
	transforms int    // number of property transforms
}

// A draftSet has the drafts of a commit.
type draftSet struct {
	db     *database
	byID   map[string]*draft
	order  []*draft
	atomic bool  // whether the commit is transactional: only such a commit may change an entity more than once
	at     int64 // the time of the commit
}

// An applied is the outcome of one mutation in a commit.
type applied struct {
	draft     *draft
	completed bool // whether the server gave an incomplete key an ID
	// whether the entity had another version than the mutation requires, so that the mutation has
	// no effect
	conflict   bool
	transforms []*pb.Value
}

func (a applied) result(at int64) *pb.MutationResult {
	r := &pb.MutationResult{ConflictDetected: a.conflict, TransformResults: a.transforms, Version: at}
	d := a.draft
	if a.completed {
		r.Key = d.key.PB
	}
	if !d.changed && d.existed {
		r.Version = d.before.At
	}
	if d.exists {
		r.UpdateTime = entity.Time(r.Version)
		r.CreateTime = entity.Time(d.created(at))
	}
	return r
}

// A mutation is a mutation of a request that check has accepted.
type mutation struct {
	*pb.Mutation
	operation string
	entity    *pb.Entity
	draft     *draft
	completed bool // whether the server gave an incomplete key an ID
}

// check checks the parts of a mutation that do not depend on stored entities. It comes before any
// other step, so a malformed mutation is refused whatever is stored.
func (s *draftSet) check(m *pb.Mutation) (mutation, error) {
	c := mutation{Mutation: m}
	switch op := m.GetOperation().(type) {
	case *pb.Mutation_Insert:
		c.operation, c.entity = "insert", op.Insert
	case *pb.Mutation_Update:
		c.operation, c.entity = "update", op.Update
	case *pb.Mutation_Upsert:
		c.operation, c.entity = "upsert", op.Upsert
	case *pb.Mutation_Delete:
		c.operation, c.entity = "delete", &pb.Entity{Key: op.Delete}
	default:
		return c, model.Invalid("a mutation has no operation")
	}
	if len(m.PropertyTransforms) > 0 && c.operation == "delete" {
		return c, model.Invalid("property transforms are not for delete")
	}
	if err := entity.CheckMask(m.PropertyMask); err != nil && c.operation != "delete" {
		return c, err
	}
	if err := checkStrategies(m, c.operation); err != nil {
		return c, err
	}
	key, completed, err := s.db.mutationKey(c.entity.GetKey(), c.operation)
	switch {
	case err != nil:
		return c, err
	case completed && m.ConflictDetectionStrategy != nil:
		return c, model.Invalid("a mutation of an incomplete key has no version to compare")
	}
	if err := s.db.CheckProperties(c.entity.GetProperties()); err != nil {
		return c, err
	}
	if err := entity.CheckTransforms(s.db.Database, m.PropertyTransforms); err != nil {
		return c, err
	}
	if c.draft, err = s.draft(key); err != nil {
		return c, err
	}
	c.completed = completed
	if c.draft.transforms += len(m.PropertyTransforms); c.draft.transforms > entity.MaxTransforms {
		return c, model.Invalid("a commit has at most %d property transforms of one entity, this one has %d",
			entity.MaxTransforms, c.draft.transforms)
	}
	return c, c.draft.follow(c.operation, s.atomic)
}

// follow checks that a commit may have an operation after those that the draft already has.
func (d *draft) follow(operation string, atomic bool) error {
	switch last := d.last; {
	case last != "" && !atomic:
		return model.Invalid("A non-transactional commit may not contain multiple mutations affecting the same " +
			"entity.")
	case operation == "insert" && last != "" && last != "delete",
		operation == "update" && last == "delete":
		return model.Invalid("Cannot %s then %s an entity in the same request.", last, operation)
	}
	d.last = operation
	return nil
}

// checkStrategies checks how a mutation detects and resolves conflicts.
func checkStrategies(m *pb.Mutation, operation string) error {
	version, err := required(m)
	switch detects := m.ConflictDetectionStrategy != nil; {
	case err != nil:
		return err
	case version < 0:
		return model.Invalid("a base version is at least 0, this one is %d", version)
	case operation == "insert" && version > 0:
		return model.Invalid("Cannot insert an entity with a base version greater than zero.")
	case operation == "update" && detects && version == 0:
		return model.Invalid("Cannot update an entity with a base version set to zero.")
	case pb.Mutation_ConflictResolutionStrategy_name[int32(m.ConflictResolutionStrategy)] == "":
		return model.Invalid("there is no conflict resolution strategy %d", m.ConflictResolutionStrategy)
	case m.ConflictResolutionStrategy != 0 && m.ConflictDetectionStrategy == nil:
		return model.Invalid("a conflict resolution strategy needs a conflict detection strategy")
	}
	return nil
}

// apply applies one mutation to the draft of its entity.
func (s *draftSet) apply(m mutation) (applied, error) {
	d := m.draft
	a := applied{draft: d, completed: m.completed}
	var err error
	if a.conflict, err = d.conflicts(m.Mutation); err != nil {
		return a, err
	}
	switch {
	case m.operation == "insert" && d.exists:
		return a, status.Error(codes.AlreadyExists, "entity already exists")
	case m.operation == "update" && !d.exists:
		return a, status.Error(codes.NotFound, "no entity to update")
	case a.conflict:
		return a, nil
	case m.operation == "delete":
		d.written, d.exists, d.after = true, false, d.after.KeyOnly()
		return a, nil
	}
	d.written, d.exists = true, true
	properties := m.entity.GetProperties()
	if names, ok := entity.TopLevel(m.PropertyMask); ok && len(m.PropertyTransforms) == 0 {
		d.after, err = d.after.Splice(names, properties)
		return a, err
	}
	if m.PropertyMask != nil {
		if properties, err = entity.Mask(d.after.Properties(), properties, m.PropertyMask.Paths); err != nil {
			return a, err
		}
	}
	if len(m.PropertyTransforms) > 0 {
		properties, a.transforms, err = entity.Transform(s.db.Database, properties, m.PropertyTransforms, s.at)
		if err != nil {
			return a, err
		}
	}
	d.after, err = d.after.With(properties)
	return a, err
}

// conflicts reports whether the draft's entity has another version than the mutation requires.
func (d *draft) conflicts(m *pb.Mutation) (bool, error) {
	var version int64
	if d.existed {
		version = d.before.At
	}
	wanted, err := required(m)
	if err != nil || m.ConflictDetectionStrategy == nil {
		return false, err
	}
	conflict := wanted != version
	if conflict && m.ConflictResolutionStrategy == pb.Mutation_FAIL {
		return true,
			status.Errorf(codes.FailedPrecondition, "the entity has version %d, which is not what the mutation is for",
				version)
	}
	return conflict, nil
}

// required returns the version that a mutation requires, or 0 if it requires none. A time counts as
// the version of that time.
func required(m *pb.Mutation) (int64, error) {
	t, ok := m.ConflictDetectionStrategy.(*pb.Mutation_UpdateTime)
	if !ok {
		return m.GetBaseVersion(), nil
	}
	if err := t.UpdateTime.CheckValid(); err != nil {
		return 0, model.Invalid("update_time: %v", err)
	}
	return t.UpdateTime.AsTime().UnixMicro(), nil
}

func (s *draftSet) draft(key model.Key) (*draft, error) {
	id := key.ID()
	if d := s.byID[id]; d != nil {
		return d, nil
	}
	d := &draft{key: key}
	d.before, d.existed = s.db.get(key, s.db.lastCommit)
	if d.exists = d.existed; d.exists {
		d.after = d.before.Form
	} else {
		var err error
		if d.after, err = entity.New(key.PB); err != nil {
			return nil, err
		}
	}
	s.byID[id] = d
	s.order = append(s.order, d)
	return d, nil
}

func (d *draft) created(at int64) int64 {
	if d.existed {
		return d.before.Created
	}
	return at
}

// versions returns the new versions to store, one for each changed draft. A write without a change
// has no effect: the entity keeps its version, as MutationResult documents.
func (s *draftSet) versions() ([]store.Version, error) {
	versions := make([]store.Version, len(s.order))
	for i, d := range s.order {
		if !d.written { // all mutations of this entity conflicted
			continue
		}
		v := store.Version{At: s.at, Created: d.created(s.at), Deleted: !d.exists, Form: d.after}
		if v.Deleted {
			v.Form = v.Clone() // the wire form contains the key; a slice of it would keep the whole form in memory
		}
		if len(v.Wire(false)) > maxEntity {
			return nil, model.Invalid("The entity %v is %d bytes, above the maximum of %d.", d.key.PB.Path,
				len(v.Wire(false)), maxEntity)
		}
		d.changed = d.exists != d.existed || d.exists && !v.Equal(d.before.Form)
		versions[i] = v
	}
	return versions, nil
}

// indexUpdates estimates the number of index entries that a commit writes. It counts one for each
// value, and one for each key.
func (s *draftSet) indexUpdates() int32 {
	n := 0
	for _, d := range s.order {
		if d.changed {
			n += 1 + d.after.Indexed()
		}
	}
	return int32(n)
}

// mutationKey checks a mutation's key, and completes it with an ID if needed.
func (db *database) mutationKey(k *pb.Key, operation string) (key model.Key, completed bool, err error) {
	incomplete := operation == "insert" || operation == "upsert"
	if err := model.CheckPath(k.GetPath(), incomplete); err != nil {
		return model.Key{}, false, err
	}
	if k.Path[len(k.Path)-1].IdType != nil {
		key, err = db.CompleteKey(k)
		return key, false, err
	}
	key, err = db.allocate(k)
	return key, true, err
}

// allocate completes a key with an ID that no entity has. IDs are spread evenly, as in production.
// They have at most 53 bits, so that JavaScript clients hold them exactly.
func (db *database) allocate(k *pb.Key) (model.Key, error) {
	last := k.Path[len(k.Path)-1]
	for {
		path := append([]*pb.Key_PathElement(nil), k.Path...)
		path[len(path)-1] = &pb.Key_PathElement{
			Kind:   last.Kind,
			IdType: &pb.Key_PathElement_Id{Id: 1 + db.ids.Int64N(1<<53-1)},
		}
		key, err := db.CompleteKey(&pb.Key{PartitionId: k.PartitionId, Path: path})
		if err != nil {
			return model.Key{}, err
		}
		taken := db.reservedIDs[key.ID()]
		if kind := db.kind(key.Namespace, key.Kind); kind != nil && !taken {
			_, taken = kind.Records.Get(key.Path)
		}
		if !taken {
			return key, nil
		}
	}
}
