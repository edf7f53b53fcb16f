package main

import (
	"fmt"

	"github.com/spf13/cobra"
)

// newVersion returns the command version. It prints the same line as the flag --version.
func newVersion() *cobra.Command {
	c := &cobra.Command{Use: "version", Short: "Print the version of scattermap", Args: nothing}
	format := outputFlag(c.Flags())
	completeFlagsOf(c)
	c.RunE = func(c *cobra.Command, _ []string) error {
		if *format != table {
			return format.write(c.OutOrStdout(), map[string]string{"version": c.Root().Version})
		}
		_, err := fmt.Fprintf(c.OutOrStdout(), "%s version %s\n", c.Root().Name(), c.Root().Version)
		return err
	}
	return c
}
