package dashboard_test

import (
	"os"
	"testing"

	"github.com/scattermap/scattermap/internal/testflag"
)

func TestMain(m *testing.M) {
	testflag.AtOnce(4)
	os.Exit(m.Run())
}
