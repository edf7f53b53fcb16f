package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Draft is the stored sum over a part of a job's records, and says which part. If the task that
// adds up the records stops or dies, the next task continues from the draft. A draft fits in an
// entity, no matter how many records there are.
//
// A draft belongs to one epoch, a number that the job gets when ranges become pending. Within this
// epoch, records no longer change. So every draft of the epoch is right, even if a slow delivery
// stores it late. A draft of another epoch is useless.
type Draft struct {
	Epoch int64 `datastore:"epoch,noindex"`
	Link  int64 `datastore:"link,noindex"` // number of the next task in the chain of tasks that add up records
	// From has the ID from which the next task must continue, for each slice of range IDs. The
	// records are read in parallel slices.
	From   []string  `datastore:"from,noindex"`
	Stored []byte    `datastore:"ledger,noindex"` // the ledger as packed JSON
	Kept   time.Time `datastore:"kept,noindex"`

	Ledger Ledger `datastore:"-"`
}

// DraftKey returns the key of the draft of a job.
func DraftKey(job record.Ref) *datastore.Key {
	return datastore.NameKey(record.DraftKind, record.RangePrefix(job)+"draft", nil)
}

// Further returns the draft that covers more records, of two drafts of the same epoch. It gives the
// returned draft the higher Link of the two, so that no two tasks get the same name.
func (d *Draft) Further(o *Draft) *Draft {
	link := max(d.Link, o.Link)
	if o.Ledger.Ranges > d.Ledger.Ranges {
		d = o
	}
	d.Link = link
	return d
}

// storedLedger is the stored form of a ledger that does not have all records yet.
type storedLedger struct {
	Totals       record.Totals  `json:"totals"`
	Retrying     int64          `json:"retrying"`
	Expected     int64          `json:"expected"`
	Counters     tally.Counters `json:"tally"`
	LeftOut      tally.Names    `json:"left_out"`
	Made         tally.Sum      `json:"made"`
	Found        tally.Sum      `json:"found"`
	Begin        tally.Sum      `json:"begin"`
	End          tally.Sum      `json:"end"`
	Meant        tally.Sum      `json:"meant"`
	Single       tally.Sum      `json:"single"`
	First        int64          `json:"first"`
	Last         int64          `json:"last"`
	Problems     []string       `json:"problems"`
	Missed       int            `json:"missed"`
	Tiles        int64          `json:"tiles"`
	PendingTiles int64          `json:"pending_tiles"`
	Alone        int64          `json:"alone"`
}

// maxDraft is the largest size of a draft's ledger in bytes.
const maxDraft = 900 << 10

// Encode sets Stored to the encoded ledger. If the counters don't fit, it leaves them out.
func (d *Draft) Encode() {
	if d.encode(); len(d.Stored) > maxDraft {
		d.Ledger.tally.Drop()
		d.encode()
	}
}

func (d *Draft) encode() {
	l := &d.Ledger
	l.bound()
	text, err := json.Marshal(storedLedger{
		l.Totals, l.Retrying, l.Expected, l.tally, l.leftOut, l.made, l.found, l.begin, l.end, l.meant, l.single,
		l.first, l.last, l.Problems, l.missed, l.Tiles, l.PendingTiles, l.Alone,
	})
	if err != nil {
		panic("ledger: numbers and texts do not encode: " + err.Error())
	}
	d.Stored = tally.Pack(text)
}

// Decode sets the ledger to the one that is encoded in Stored.
func (d *Draft) Decode() error {
	var s storedLedger
	text, err := tally.Unpack(d.Stored)
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return fmt.Errorf("the draft of a ledger: %w", err)
	}
	s.Totals.Retrying, s.Totals.Expected = s.Retrying, s.Expected
	d.Ledger = Ledger{Sum{s.Totals, s.Counters, s.LeftOut}, s.Made, s.Found, s.Begin, s.End, s.Meant, s.Single, s.First,
		s.Last, s.Problems,
		s.Missed, s.Tiles, s.PendingTiles, s.Alone}
	return nil
}
