package main

import (
	"encoding/json"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/auth"
	"github.com/millrace/millrace/config"
)

func newKeys() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "keys",
		Short:   "Make API keys for serve --api-keys",
		Long:    "API keys identify callers and limit their use of the server: docs/security.md.",
		Example: "  millrace keys create --tenant acme >> keys.yaml",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newKeysCreate())
	return cmd
}

func newKeysCreate() *cobra.Command {
	var e auth.Entry
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "create",
		Short: "Make an API key",
		Long: `Make an API key. The key goes to standard error, once: it cannot be recovered. Its line for the
file of --api-keys, with the key's hash and limits, goes to standard output. A running server
reads the file again by itself.`,
		Example: `  millrace keys create --tenant acme >> keys.yaml
  millrace keys create --tenant acme --requests-per-minute 60 --tokens-per-minute 100000 --concurrent 8 >> keys.yaml`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if e.Tenant == "" {
				return config.Usagef("--tenant: expected a name")
			}
			key, made := auth.NewKey(e.Tenant)
			e.ID, e.Hash = made.ID, made.Hash
			if err := e.Check(); err != nil {
				return config.Usagef("--%w", err)
			}
			line, err := e.Line()
			if err != nil {
				return err
			}
			if asJSON {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(map[string]string{"key": key, "id": e.ID, "tenant": e.Tenant,
					"line": line})
			}
			if _, err := fmt.Fprint(cmd.OutOrStdout(), line); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.ErrOrStderr(), "The key, shown this once: %s\n", key)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&e.Tenant, "tenant", "", "tenant of the key; keys of one tenant share its place in the queue")
	f.IntVar(&e.RequestsPerMinute, "requests-per-minute", 0, "requests per minute of the key (0: no limit)")
	f.IntVar(&e.TokensPerMinute, "tokens-per-minute", 0, "tokens per minute of the key, prompts and answers together (0: no limit)")
	f.IntVar(&e.Concurrent, "concurrent", 0, "requests of the key that may run at once (0: no limit)")
	f.IntVar(&e.Weight, "weight", 1, "share of the tenant relative to other tenants, equal in all of its keys")
	f.IntVar(&e.Priority, "priority", 0, "best priority of the key's requests; lower runs first")
	f.StringSliceVar(&e.Models, "models", nil, "models that the key may use (default: all)")
	f.BoolVar(&asJSON, "json", false, "print one JSON object, with the key")
	return cmd
}
