package query

import (
	"fmt"
	"math"
	"math/big"
	"slices"

	pb "cloud.google.com/go/datastore/apiv1/datastorepb"

	"github.com/scattermap/scattermap/emulator/internal/entity"
	"github.com/scattermap/scattermap/emulator/internal/model"
)

// A Tally is one aggregation of a query, such as a COUNT, during the scan.
type Tally struct {
	Alias    string
	property string // the property to sum or average; empty: the aggregation is a COUNT
	average  bool
	upTo     int64 // the limit of a COUNT; negative: no limit

	n        int64
	sum      *big.Float // exact sum of the finite values
	special  float64    // sum of infinities and NaN; 0 if there are none
	isDouble bool       // whether one of the values was a double
}

// exactly is a precision in bits. With it, a sum of up to 2^64 doubles of any magnitude is exact.
const exactly = 1024 + 1074 + 64

const maxAggregations = 5

// NewTallies checks the aggregations of a request. It returns a Tally for each, before the first
// row.
func NewTallies(aggregations []*pb.AggregationQuery_Aggregation) ([]*Tally, error) {
	switch n := len(aggregations); {
	case n == 0:
		return nil, model.Invalid("an aggregation query has 1 to %d aggregations, this one has none", maxAggregations)
	case n > maxAggregations:
		return nil, model.Invalid("The maximum number of aggregations allowed in an aggregation query is %d. "+
			"Received: %d", maxAggregations, n)
	}
	var tallies []*Tally
	aliases := make(map[string]bool)
	unnamed := 0
	for _, a := range aggregations {
		t := &Tally{Alias: a.GetAlias(), upTo: -1, sum: new(big.Float).SetPrec(exactly)}
		if t.Alias == "" {
			unnamed++ // results without a name get the names property_1, property_2 and so on
			t.Alias = fmt.Sprintf("property_%d", unnamed)
		}
		if model.Reserved(t.Alias) || len(t.Alias) > model.MaxName {
			return nil, model.Invalid("the alias %q is reserved or longer than %d bytes", t.Alias, model.MaxName)
		}
		if aliases[t.Alias] {
			return nil, model.Invalid("two aggregations have the alias %q", t.Alias)
		}
		aliases[t.Alias] = true
		switch op := a.GetOperator().(type) {
		case *pb.AggregationQuery_Aggregation_Count_:
			if op.Count.GetUpTo() != nil {
				if t.upTo = op.Count.UpTo.Value; t.upTo < 0 {
					return nil, model.Invalid("up_to of the count %q has to be at least 0, it is %d", t.Alias, t.upTo)
				}
			}
		case *pb.AggregationQuery_Aggregation_Sum_:
			if t.property = op.Sum.GetProperty().GetName(); t.property == "" {
				return nil, model.Invalid("the sum %q names no property", t.Alias)
			}
		case *pb.AggregationQuery_Aggregation_Avg_:
			t.average = true
			if t.property = op.Avg.GetProperty().GetName(); t.property == "" {
				return nil, model.Invalid("the average %q names no property", t.Alias)
			}
		default:
			return nil, model.Invalid("the aggregation %q is none of COUNT, SUM and AVG", t.Alias)
		}
		if model.Reserved(t.property) {
			return nil, model.Invalid("Aggregations are not supported for the property: %s", t.property)
		}
		tallies = append(tallies, t)
	}
	return tallies, nil
}

// Aggregated returns the properties that are summed or averaged, sorted by name.
func Aggregated(tallies []*Tally) []string {
	var names []string
	for _, t := range tallies {
		if t.property != "" {
			names = append(names, t.property)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Full reports whether all results are final, whatever rows follow. This is so if each aggregation
// is a COUNT that has reached its limit.
func Full(tallies []*Tally) bool {
	for _, t := range tallies {
		if t.upTo < 0 || t.n < t.upTo {
			return false
		}
	}
	return true
}

// Add adds a row, with the values that it has in the index.
func (t *Tally) Add(values map[string]*pb.Value) {
	if t.property == "" {
		if t.upTo < 0 || t.n < t.upTo {
			t.n++
		}
		return
	}
	switch value := values[t.property].GetValueType().(type) {
	case *pb.Value_IntegerValue:
		t.n++
		t.sum.Add(t.sum, new(big.Float).SetInt64(value.IntegerValue))
	case *pb.Value_DoubleValue:
		t.n++
		t.isDouble = true
		if d := value.DoubleValue; math.IsNaN(d) || math.IsInf(d, 0) {
			t.special += d
		} else {
			t.sum.Add(t.sum, big.NewFloat(d))
		}
	}
}

// Result returns the result of the aggregation. A sum of integers is an integer, or a double if it
// exceeds 64 bits. The average of no numbers is null.
func (t *Tally) Result() *pb.Value {
	sum, _ := t.sum.Float64()
	if t.special != 0 {
		sum = t.special
	}
	whole, accuracy := t.sum.Int64()
	switch {
	case t.property == "":
		return entity.Integer(t.n)
	case t.average && t.n == 0:
		return &pb.Value{ValueType: &pb.Value_NullValue{}}
	case t.average:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: sum / float64(t.n)}}
	case t.isDouble || accuracy != big.Exact:
		return &pb.Value{ValueType: &pb.Value_DoubleValue{DoubleValue: sum}}
	default:
		return entity.Integer(whole)
	}
}
