package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/config"
	"github.com/millrace/millrace/lab/load"
)

// urlFlags are the flags of bench --url.
type urlFlags struct {
	url, key string
	load.Options
}

func (o *urlFlags) register(f *pflag.FlagSet) {
	f.StringVar(&o.url, "url", "",
		"measure a server of OpenAI's API at this address, instead of a model on this machine; --prompt counts words then, and --model is the server's name")
	f.StringVar(&o.key, "api-key", "", "with --url: API key")
	f.Float64Var(&o.Rate, "rate", 1, "with --url: requests per second, at random moments (0: all at once)")
	f.IntVar(&o.Requests, "requests", 100, "with --url: number of requests")
	f.Uint64Var(&o.Seed, "seed", 1, "with --url: seed of the moments and the prompts")
	f.DurationVar(&o.TTFT, "ttft", 2*time.Second, "with --url: longest time to the first token of a good answer")
	f.DurationVar(&o.TPOT, "tpot", 100*time.Millisecond, "with --url: longest time per token after the first of a good answer, in the mean")
}

// run measures the server.
func (o *urlFlags) run(ctx context.Context, out io.Writer, model string, prompt, gen int, asJSON bool) error {
	if o.Rate < 0 || o.Requests < 1 || prompt < 1 || gen < 1 {
		return config.Usagef("--rate %g, --requests %d, --prompt %d, --gen %d: expected at least 0, 1, 1, 1", o.Rate, o.Requests, prompt,
			gen)
	}
	options := []client.HTTPOption{client.WithHTTPResume(0)} // other servers do not know the fields of a resumable stream
	if o.key != "" {
		options = append(options, client.WithAPIKey(o.key))
	}
	c, err := client.NewHTTP(o.url, options...)
	if err != nil {
		return err
	}
	defer c.Close()
	o.Model, o.Prompt, o.Gen = model, prompt, gen
	r, err := load.Run(ctx, c, o.Options)
	if err := show(out, r, asJSON, err); err != nil {
		return err
	}
	if r.Failed == r.Requests {
		return fmt.Errorf("%s: no request was answered: %s", o.url, strings.Join(r.Errors, "; "))
	}
	return nil
}
