package ledger

import (
	"encoding/json"
	"fmt"
	"time"

	"cloud.google.com/go/datastore"

	"github.com/scattermap/scattermap/mapper/internal/record"
	"github.com/scattermap/scattermap/mapper/internal/tally"
)

// A Draft is the ledger of some of a job's records, and says which: so that whoever comes next goes
// on where another delivery has stopped, or died. It is about an epoch in which no record changes
// any more. So every draft of that epoch is right, whoever has made it and however late it is; one
// of another epoch is of no use. It takes less than an entity may, however many records there are.
type Draft struct {
	Epoch  int64     `datastore:"epoch,noindex"`
	Link   int64     `datastore:"link,noindex"`   // of the chain of tasks that add up: the one that goes on
	From   []string  `datastore:"from,noindex"`   // for each slice of the IDs: where it goes on
	Stored []byte    `datastore:"ledger,noindex"` // JSON, as tally.Pack has it
	Kept   time.Time `datastore:"kept,noindex"`

	Ledger Ledger `datastore:"-"`
}

// DraftKey returns the key of the draft of a job.
func DraftKey(job record.Ref) *datastore.Key {
	return datastore.NameKey(record.DraftKind, record.RangePrefix(job)+"draft", nil)
}

// Further returns that of two drafts of an epoch which is of more records. Its chain is where the
// longer one of theirs is.
func (d *Draft) Further(o *Draft) *Draft {
	link := max(d.Link, o.Link)
	if o.Ledger.Ranges > d.Ledger.Ranges {
		d = o
	}
	d.Link = link
	return d
}

// storedLedger is what a ledger is stored as that is not closed yet.
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

// maxDraft is how many bytes of a ledger a draft has room for.
const maxDraft = 900 << 10

// Encode puts the ledger into what is stored: without counters, if they take too much.
func (d *Draft) Encode() error {
	if err := d.encode(); err != nil || len(d.Stored) <= maxDraft {
		return err
	}
	d.Ledger.tally.Drop()
	return d.encode()
}

func (d *Draft) encode() error {
	l := &d.Ledger
	l.bound()
	text, err := json.Marshal(storedLedger{
		l.Totals, l.Retrying, l.Expected, l.tally, l.leftOut, l.made, l.found, l.begin, l.end, l.meant, l.single,
		l.first, l.last, l.Problems, l.missed, l.Tiles, l.PendingTiles, l.Alone,
	})
	d.Stored = tally.Pack(text)
	return err
}

// Decode gets the ledger out of what was stored.
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
