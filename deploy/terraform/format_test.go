package terraform_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/hashicorp/hcl/v2/hclwrite"
)

// TestFormat checks that HCL's own formatter would not change the module's files. This covers most
// of what terraform fmt does. .ci/nightly also runs OpenTofu's formatter.
func TestFormat(t *testing.T) {
	for _, folder := range []string{".", "example"} {
		for name, text := range read(t, folder) {
			if diff := cmp.Diff(string(hclwrite.Format([]byte(text))), text); diff != "" {
				t.Errorf("%s is not formatted (-want +got):\n%s", name, diff)
			}
		}
	}
}
