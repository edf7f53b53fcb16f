package operator

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/mapper"
)

// AddCondition parses a condition in GQL, such as plan = 'free' AND seen <
// DATETIME('2026-10-24T00:00:00Z'), and adds it to the filters of a query.
func AddCondition(q *mapper.Query, text string) error {
	c, err := gql.ParseCondition(text)
	if err == nil {
		err = addFilter(q, c)
	}
	if err != nil {
		return fmt.Errorf("it has to be a condition of GQL, such as Seats > 10 AND plan = 'free': %w", err)
	}
	return nil
}

// addFilter adds a parsed condition to the filters of a query. If it is an AND, each of its
// operands becomes a filter.
func addFilter(q *mapper.Query, c *pb.Filter) error {
	if all := c.GetCompositeFilter(); all != nil {
		if all.Op != pb.CompositeFilter_AND {
			return errors.New("a job has no OR: start a job for each, or skip entities in the function")
		}
		for _, each := range all.Filters {
			if err := addFilter(q, each); err != nil {
				return err
			}
		}
		return nil
	}
	f := c.GetPropertyFilter()
	value, err := gql.GoValue(f.GetValue())
	if err != nil {
		return err
	}
	name, op := f.GetProperty().GetName(), f.GetOp()
	key, ofKey := value.(*datastore.Key)
	switch {
	case op == pb.PropertyFilter_HAS_ANCESTOR && ofKey && q.Ancestor == nil:
		q.Ancestor = key
	case op == pb.PropertyFilter_IN && len(f.GetValue().GetArrayValue().GetValues()) == 0:
		return fmt.Errorf("%s IN has no values", name)
	case name != "__key__" && gql.Filters[op] != "":
		q.Filters = append(q.Filters, mapper.Where(name, gql.Filters[op], value))
	case ofKey && op == pb.PropertyFilter_GREATER_THAN_OR_EQUAL && q.Start == nil:
		q.Start = key
	case ofKey && op == pb.PropertyFilter_LESS_THAN && q.End == nil:
		q.End = key
	case name == "__key__":
		return errors.New("of keys there are __key__ >= KEY(…), __key__ < KEY(…) and __key__ HAS ANCESTOR KEY(…), " +
			"each once")
	default:
		return fmt.Errorf("a job has no %s: skip entities in the function", op)
	}
	return nil
}

// AddShare limits a query to a share of all keys, or to the keys outside of a share (except). Both
// are texts as on the command line. At most one of them may be given.
func AddShare(q *mapper.Query, share, except string) error {
	if share != "" && except != "" {
		return errors.New("a share of the entities, and all but a share, contradict each other")
	}
	text := cmp.Or(share, except)
	if text == "" {
		return nil
	}
	number, ok := strings.CutSuffix(text, "%")
	percent, err := strconv.ParseFloat(number, 64)
	if parts := math.Round(percent * 1000); !ok || err != nil || !(parts >= 100 && parts <= 99_900) ||
		math.Abs(parts-percent*1000) > 1e-6 {
		return fmt.Errorf("the share %q has to be from 0.1%% to 99.9%%, such as 1%% or 0.125%%", text)
	}
	parts := int64(math.Round(percent * 1000))
	f := mapper.Share(0, parts, 100_000)
	if except != "" {
		f = mapper.Share(parts, 100_000, 100_000)
	}
	q.Filters = append(q.Filters, f)
	return nil
}

// NewID returns a new ID for a job, made of the mapper's name, the time and random letters. The
// letters make the ID unique if two jobs start in the same second. If rehearse is set, the ID also
// has the word rehearsal. A long name is shortened, because an ID has at most 100 bytes.
func NewID(mapper string, rehearse bool) string {
	end := time.Now().UTC().Format("-20060102-150405-") + strings.ToLower(rand.Text()[:5])
	if rehearse {
		end = "-rehearsal" + end
	}
	name := regexp.MustCompile(`[^A-Za-z0-9_-]`).ReplaceAllString(mapper, "-")
	return name[:min(len(name), 100-len(end))] + end
}
