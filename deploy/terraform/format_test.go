package terraform_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// TestFormat has the files as HCL's own formatter has them, which is most of what terraform fmt
// does. .ci/nightly has OpenTofu do it.
func TestFormat(t *testing.T) {
	for _, folder := range []string{".", "example"} {
		for name, text := range read(t, folder) {
			if diff := cmp.Diff(string(hclwrite.Format([]byte(text))), text); diff != "" {
				t.Errorf("%s is not formatted (-want +got):\n%s", name, diff)
			}
		}
	}
}
