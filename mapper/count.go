package mapper

import (
	"context"
	"fmt"
	"log/slog"

	"cloud.google.com/go/datastore/apiv1/datastorepb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// count counts the entities of scans, or up to most of them. It only helps to cut well: if
// the database can't it is not known how many there are.
func (src source) count(ctx context.Context, scans []scan, most int) (n int64, known bool) {
	for _, s := range scans {
		more, known := src.countOne(ctx, s, most-int(n))
		if !known {
			return 0, false
		}
		if n += more; n >= int64(most) {
			break
		}
	}
	return n, true
}

func (src source) countOne(ctx context.Context, s scan, most int) (n int64, known bool) {
	n, err := src.counted(ctx, s, most)
	if err != nil && status.Code(err) != codes.Unimplemented && ctx.Err() == nil {
		src.log.LogAttrs(ctx, slog.LevelDebug, "entities can't be counted, and are estimated", slog.Any("error", err))
	}
	return n, err == nil
}

// counted counts the entities of a scan, or up to most of them if that is not 0.
func (src source) counted(ctx context.Context, s scan, most int) (int64, error) {
	q, err := src.at.query(s.query)
	if err != nil {
		return 0, err
	}
	if most > 0 {
		q = q.Limit(most)
	}
	result, err := src.client.RunAggregationQuery(ctx, q.NewAggregationQuery().WithCount("n"))
	if err != nil {
		return 0, err
	}
	value, ok := result["n"].(*datastorepb.Value)
	if !ok {
		return 0, fmt.Errorf("the answer to a count has %T", result["n"])
	}
	return value.GetIntegerValue(), nil
}
