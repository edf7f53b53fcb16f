package main

import (
	"errors"
	"fmt"

	"cloud.google.com/go/datastore"
	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/internal/gql"
	"github.com/scattermap/scattermap/mapper"
)

// addCondition has a query be over what a condition in GQL leaves: plan = 'free' AND seen < DATETIME('2026-10-24T00:00:00Z').
func addCondition(q *mapper.Query, text string) error {
	c, err := gql.ParseCondition(text)
	if err == nil {
		err = addFilter(q, c)
	}
	if err != nil {
		return fmt.Errorf("--filter %q: it has to be a condition of GQL, such as Seats > 10 AND plan = 'free': %w", text, err)
	}
	return nil
}

// addFilter has a query satisfy a condition, too.
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
		return errors.New("of keys there are __key__ >= KEY(…), __key__ < KEY(…) and __key__ HAS ANCESTOR KEY(…), each once")
	default:
		return fmt.Errorf("a job has no %s: skip entities in the function", op)
	}
	return nil
}
