package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/schollz/progressbar/v3"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/models/hub"
)

func newPull(a *app) *cobra.Command {
	var revision string
	cmd := &cobra.Command{
		Use:   "pull OWNER/NAME[:VARIANT]",
		Short: "Download a model from the Hugging Face Hub",
		Long: `Download the configuration, the tokenizer and the weights of a model, as safetensors or else as
pytorch_model.bin. With a VARIANT, such as Q8_0, download the GGUF file of that variant. An interrupted download
continues with the same command. Each file is compared with the hub's checksum.

The environment names the hub and the account, as for Hugging Face's own tools: HF_ENDPOINT (default:
` + hub.DefaultEndpoint + `) and HF_TOKEN. Models are kept in $XDG_DATA_HOME/millrace/models (default:
~/.local/share/millrace/models).`,
		Example: `  millrace pull Qwen/Qwen3-0.6B
  millrace pull Qwen/Qwen3-0.6B-GGUF:Q8_0
  millrace serve Qwen/Qwen3-0.6B`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := hub.ParseName(args[0])
			if err != nil {
				return config.Usagef("%v", err)
			}
			return pull(cmd.Context(), a, cmd.OutOrStdout(), cmd.ErrOrStderr(), n, revision)
		},
	}
	cmd.Flags().StringVar(&revision, "revision", "", "branch, tag or commit of the model (default: its main branch)")
	return cmd
}

func pull(ctx context.Context, a *app, out, progress io.Writer, n hub.Name, revision string) error {
	store, err := hub.DefaultStore()
	if err != nil {
		return err
	}
	m, err := download(ctx, a, progress, store, n, revision)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s (%s) is at %s\nmillrace serve %s serves it.\n", m.Name, byteCount(m.Size()), m.Path(), m.Name)
	return err
}

// download puts a model into the store, unless it is there. Before its weights it prints what it is and what it needs.
func download(ctx context.Context, a *app, progress io.Writer, store hub.Store, n hub.Name, revision string) (*hub.Model, error) {
	if offline(os.Getenv("HF_HUB_OFFLINE")) {
		m, err := store.Find(n)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s: found no downloaded model of that name, expected one, since HF_HUB_OFFLINE is set", n)
		}
		return m, err
	}
	report, note, end := progressTo(a, progress)
	defer end()
	check := func(path string) error {
		about, err := admit(n, path)
		if err == nil {
			note(about)
		}
		return err
	}
	return store.Pull(ctx, &hub.Hub{Endpoint: os.Getenv("HF_ENDPOINT"), Token: hubToken()}, n, revision, check, report)
}

// offline reads a flag of the environment as Hugging Face's tools do.
func offline(value string) bool {
	return slices.Contains([]string{"1", "ON", "YES", "TRUE"}, strings.ToUpper(value))
}

// hubToken returns the token of the user's account: HF_TOKEN, or what Hugging Face's login has written. "" is no account.
func hubToken() string {
	if t := os.Getenv("HF_TOKEN"); t != "" {
		return t
	}
	home := os.Getenv("HF_HOME")
	if home == "" {
		dir, err := os.UserHomeDir()
		if err != nil {
			return ""
		}
		home = filepath.Join(dir, ".cache", "huggingface")
	}
	token, err := os.ReadFile(filepath.Join(home, "token"))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(token))
}

// progressTo reports a download as a bar on a terminal, else as a log line every ten seconds. note prints a line between.
func progressTo(a *app, w io.Writer) (report func(hub.Progress), note func(string), end func()) {
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		var bar *progressbar.ProgressBar
		return func(p hub.Progress) {
			if bar == nil {
				bar = progressbar.NewOptions64(p.Total, progressbar.OptionSetWriter(w), progressbar.OptionShowBytes(true),
					progressbar.OptionThrottle(100*time.Millisecond), progressbar.OptionFullWidth(), progressbar.OptionShowCount())
			}
			bar.Describe(p.File)
			bar.Set64(p.Done) //nolint:errcheck // it only draws
		}, func(text string) { fmt.Fprintf(w, "\r\x1b[K%s\n", text) }, func() { fmt.Fprintln(w) }
	}
	const every = 10 * time.Second
	last := time.Now()
	return func(p hub.Progress) {
		if now := time.Now(); now.Sub(last) >= every {
			last = now
			a.log.Info().Str("file", p.File).Str("done", byteCount(p.Done)).Str("total", byteCount(p.Total)).Msg("downloading")
		}
	}, func(text string) { fmt.Fprintln(w, text) }, func() {}
}

// byteCount writes a size for people.
func byteCount(n int64) string {
	const unit = 1000
	value, units := float64(n), "kMGT"
	if n < unit {
		return fmt.Sprintf("%d B", n)
	}
	i := -1
	for value >= unit && i < len(units)-1 {
		value /= unit
		i++
	}
	return fmt.Sprintf("%.1f %cB", value, units[i])
}

func newModels() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "models",
		Short: "List the models that pull has downloaded",
		Example: `  millrace models
  millrace models remove Qwen/Qwen3-0.6B`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return listModels(cmd.OutOrStdout(), asJSON) },
	}
	jsonFlag(cmd, &asJSON)
	cmd.AddCommand(&cobra.Command{
		Use:     "remove OWNER/NAME[:VARIANT]",
		Aliases: []string{"rm"},
		Short:   "Remove a model that pull has downloaded, whole or in part",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n, err := hub.ParseName(args[0])
			if err != nil {
				return config.Usagef("%v", err)
			}
			store, err := hub.DefaultStore()
			if err != nil {
				return err
			}
			if err := store.Remove(n); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "removed %s\n", n)
			return err
		},
	})
	return cmd
}

// listed is a model as models prints it with --json.
type listed struct {
	*hub.Model
	Path string `json:"path"`
	Size int64  `json:"bytes"`
}

func listModels(out io.Writer, asJSON bool) error {
	store, err := hub.DefaultStore()
	if err != nil {
		return err
	}
	list, err := store.List()
	if err != nil {
		return err
	}
	if asJSON {
		all := []listed{}
		for _, m := range list {
			all = append(all, listed{m, m.Path(), m.Size()})
		}
		return json.NewEncoder(out).Encode(all)
	}
	if len(list) == 0 {
		_, err := fmt.Fprintf(out, "No model is in %s. \"millrace pull OWNER/NAME\" downloads one.\n", store.Dir)
		return err
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NAME\tSIZE\tCOMMIT\tPULLED")
	for _, m := range list {
		fmt.Fprintf(w, "%s\t%s\t%.10s\t%s\n", m.Name, byteCount(m.Size()), m.Commit, m.Pulled.Local().Format(time.DateTime))
	}
	return w.Flush()
}
