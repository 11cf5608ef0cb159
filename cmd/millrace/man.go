package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// newMan makes the command with which packages get their manual pages. It is hidden: users have the pages, or --help.
func newMan() *cobra.Command {
	return &cobra.Command{
		Use:    "man DIR",
		Short:  "Write the manual pages of all commands",
		Args:   cobra.ExactArgs(1),
		Hidden: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the pages of a commit are the same at any time
			header := &doc.GenManHeader{Title: "MILLRACE", Section: "1", Source: "Millrace " + version, Manual: "Millrace"}
			if err := doc.GenManTree(root, header, args[0]); err != nil {
				return fmt.Errorf("manual pages: %w", err)
			}
			return nil
		},
	}
}
