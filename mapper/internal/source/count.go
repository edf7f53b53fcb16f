package source

import (
	"context"
	"fmt"
	"log/slog"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/scattermap/scattermap/mapper/internal/query"
)

// Count counts the entities of scans, or up to most of them. It only helps to cut well: if
// the database can't it is not known how many there are.
func (src Source) Count(ctx context.Context, scans []query.Scan, most int) (n int64, known bool) {
	for _, s := range scans {
		more, known := src.CountOne(ctx, s, most-int(n))
		if !known {
			return 0, false
		}
		if n += more; n >= int64(most) {
			break
		}
	}
	return n, true
}

// CountOne counts the entities of a scan, or up to most of them, as Count does.
func (src Source) CountOne(ctx context.Context, s query.Scan, most int) (n int64, known bool) {
	n, err := src.Counted(ctx, s, most)
	if err != nil && status.Code(err) != codes.Unimplemented && ctx.Err() == nil {
		src.log.LogAttrs(ctx, slog.LevelDebug, "entities can't be counted, and are estimated", slog.Any("error", err))
	}
	return n, err == nil
}

// Counted counts the entities of a scan, or up to most of them if that is not 0.
func (src Source) Counted(ctx context.Context, s query.Scan, most int) (int64, error) {
	q, err := src.At.Query(s.Query)
	if err != nil {
		return 0, err
	}
	if most > 0 {
		q = q.Limit(most)
	}
	result, err := src.Client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount("n"))
	if err != nil {
		return 0, err
	}
	value, ok := result["n"].(*datastorepb.Value)
	if !ok {
		return 0, fmt.Errorf("the answer to a count has %T", result["n"])
	}
	return value.GetIntegerValue(), nil
}
