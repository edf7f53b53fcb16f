package operator

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParsePeriod parses a time in days, such as 30d, or in the form of time.ParseDuration.
func ParsePeriod(text string) (time.Duration, error) {
	days, ok := strings.CutSuffix(text, "d")
	if !ok {
		return time.ParseDuration(text)
	}
	n, err := strconv.Atoi(days)
	if n > maxDays || n < -maxDays {
		err = fmt.Errorf("more than %d days", maxDays)
	}
	return time.Duration(n) * 24 * time.Hour, err
}

// maxDays is about the number of days that a time.Duration can hold.
const maxDays = 100_000
