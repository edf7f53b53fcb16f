package mapper_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/scattermap/scattermap/mapper"
)

// A Raise holds the parameters of the mapper raise.
type Raise struct {
	Percent int64 `json:"percent"`
}

// Validate implements Validator.
func (p Raise) Validate() error {
	if p.Percent < 1 || p.Percent > 20 {
		return fmt.Errorf(`"percent" is %d, it has to be in [1, 20]`, p.Percent)
	}
	return nil
}

var raise = mapper.Update("raise", func(_ context.Context, e *mapper.Entity[Team], p Raise) error { return nil })

func ExampleValidator() {
	ctx := context.Background()
	_, m, stop := engine(ctx, raise)
	defer stop()
	_, err := m.StartByName(ctx, "raise", mapper.Query{Kind: "Team"}, []byte(`{"percent": 200}`),
		&mapper.StartOptions{ID: "spring"})
	fmt.Println(errors.Is(err, mapper.ErrInvalidArgument), err)
	// Output:
	// true mapper: start spring of "raise": bad arguments: params: "percent" is 200, it has to be in [1, 20]
}
