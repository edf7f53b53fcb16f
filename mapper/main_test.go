package mapper_test

import (
	"testing"

	"github.com/scattermap/scattermap/internal/googletest"
)

func TestMain(m *testing.M) { googletest.Main(m) }
