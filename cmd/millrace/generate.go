package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/api"
	"github.com/millrace/millrace/compute/sample"
	"github.com/millrace/millrace/config"
)

type generateOptions struct {
	serve     config.Serve
	prompt    string
	chat      string
	system    string
	tokens    string
	maxTokens int
	stop      []string
	ignoreEOS bool
	asJSON    bool
	sampling  sample.Params
	beams     beamFlags
}

func newGenerate(a *app) *cobra.Command {
	o := generateOptions{sampling: sample.Default()}
	sampling := o.samplingFlags()
	cmd := &cobra.Command{
		Use:   "generate",
		Short: "Generate text from a prompt, without a server",
		Long: `Generate text with the pipeline of the server, in this process. Text is printed as it is made.

--prompt continues a text as it is. --chat sends it as a user's turn in the model's chat template.
--tokens takes token ids. If a chat model ends at once on a text as it is, it gets the text again
as a user's turn and the log says so; with --json it does not.`,
		Example: `  millrace generate --chat "What is the capital of the US?"
  millrace generate --prompt "The capital of France is" -n 20 --temperature 0
  millrace generate --model DIR --tokens 5,6,7 -n 40 --temperature 0 --json
  millrace generate --prompt "The capital of France is" -n 20 --beams 4 --length-penalty 0.8`,
		Annotations: map[string]string{quietLogs: "true"},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("seed") {
				o.sampling.Seed = rand.Uint64()
			}
			if err := o.beams.check(cmd.Flags(), sampling); err != nil {
				return err
			}
			return generate(cmd.Context(), cmd.OutOrStdout(), a, &o)
		},
	}
	takesModel(cmd)
	f := cmd.Flags()
	o.serve.Device.Register(f)
	config.RegisterModel(f, &o.serve.Model)
	f.StringVar(&o.prompt, "prompt", "", "text to continue")
	f.StringVar(&o.chat, "chat", "", "message of a user to a chat model")
	f.StringVar(&o.system, "system", "", "system message, with --chat")
	f.StringVar(&o.tokens, "tokens", "", "prompt as token ids, separated by commas")
	f.IntVarP(&o.maxTokens, "max-tokens", "n", 0, "largest number of tokens to generate (0: up to the model's context)")
	f.BoolVar(&o.ignoreEOS, "ignore-eos", false, "continue to the token limit")
	f.AddFlagSet(sampling)
	f.Uint64Var(&o.sampling.Seed, "seed", 0, "seed of sampling (default: a new one for each run)")
	o.beams.register(f)
	jsonFlag(cmd, &o.asJSON)
	return cmd
}

// samplingFlags returns the flags that a beam search refuses.
func (o *generateOptions) samplingFlags() *pflag.FlagSet {
	f := pflag.NewFlagSet("sampling", pflag.ContinueOnError)
	f.SortFlags = false
	f.Float32Var(&o.sampling.Temperature, "temperature", 0, "sampling temperature (0: always the likeliest token)")
	f.IntVar(&o.sampling.TopK, "top-k", 0, "sample from the k likeliest tokens (0: all)")
	f.Float32Var(&o.sampling.TopP, "top-p", 1, "sample from the likeliest tokens that make up this share of the probability")
	f.Float32Var(&o.sampling.MinP, "min-p", 0, "leave out tokens less likely than this share of the likeliest")
	f.Float32Var(&o.sampling.RepetitionPenalty, "repetition-penalty", 1, "penalty of repeated tokens, above 1")
	f.StringArrayVar(&o.stop, "stop", nil, "text before which the answer ends; may be repeated")
	return f
}

func generate(ctx context.Context, out io.Writer, a *app, o *generateOptions) error {
	r, err := o.request()
	if err != nil {
		return err
	}
	if o.serve.Model, err = modelDir(o.serve.Model); err != nil {
		return err
	}
	if err := o.serve.Device.Validate(); err != nil {
		return err
	}
	o.serve.MaxBatchTokens, o.serve.MaxBatchSize, o.serve.DraftRows = 512, max(o.beams.Width, 1), config.DraftRows
	e, err := openEngine(&o.serve, beginLoading(&o.serve, a.log), nil, nil, a.log)
	if err != nil {
		return err
	}
	r.Model = e.modelID
	answer, err := readAnswer(ctx, out, e, r, o.asJSON)
	if err == nil && answer.Text == "" && r.Prompt != "" && !o.asJSON && e.model.tokenizer.HasChatTemplate() {
		a.log.Warn().Msg("the model has nothing to add to the text as it is: asking it as a chat, as --chat does")
		r.ID, r.Prompt, r.Messages = "chat", "", []api.Message{{Role: "user", Content: o.prompt}}
		answer, err = readAnswer(ctx, out, e, r, false)
	}
	switch {
	case err == nil && o.asJSON:
		err = printJSON(out, answer)
	case err == nil:
		_, err = fmt.Fprintln(out)
	}
	return errors.Join(err, e.shutdown(10*time.Second))
}

// answer is what generate prints with --json.
type answer struct {
	Tokens []int32 `json:"tokens"`
	Text   string  `json:"text"`
	Finish string  `json:"finish_reason"`
}

// request checks the flags and makes the request.
func (o *generateOptions) request() (*api.Request, error) {
	r := &api.Request{
		ID: "generate", N: 1, MaxTokens: o.maxTokens, Stop: o.stop, IgnoreEOS: o.ignoreEOS,
		TopLogprobs: -1, Sampling: o.sampling, Arrival: time.Now(), Beams: o.beams.params(),
	}
	given := 0
	if o.prompt != "" {
		given++
		r.Prompt = o.prompt
	}
	if o.chat != "" {
		given++
		if o.system != "" {
			r.Messages = append(r.Messages, api.Message{Role: "system", Content: o.system})
		}
		r.Messages = append(r.Messages, api.Message{Role: "user", Content: o.chat})
	}
	if o.tokens != "" {
		given++
		var err error
		if r.PromptTokens, err = parseTokens(o.tokens); err != nil {
			return nil, err
		}
	}
	switch {
	case given == 0:
		return nil, config.Usagef("found no prompt, expected one of --prompt, --chat and --tokens")
	case given > 1:
		return nil, config.Usagef("found more than one of --prompt, --chat and --tokens, expected one")
	case o.maxTokens < 0:
		return nil, config.Usagef("--max-tokens: found %d, expected at least 0", o.maxTokens)
	}
	if err := o.sampling.Validate(); err != nil {
		return nil, config.Usagef("%v", err)
	}
	return r, nil
}

// parseTokens reads "5,6,7".
func parseTokens(s string) ([]int32, error) {
	var ids []int32
	for field := range strings.SplitSeq(s, ",") {
		id, err := strconv.ParseInt(strings.TrimSpace(field), 10, 32)
		if err != nil || id < 0 {
			return nil, config.Usagef("--tokens: found %q, expected token ids separated by commas", field)
		}
		ids = append(ids, int32(id))
	}
	return ids, nil
}

// readAnswer reads the answer to r; with quiet off it prints the text as it comes.
func readAnswer(ctx context.Context, out io.Writer, engine api.Engine, r *api.Request, quiet bool) (*answer, error) {
	stream, err := engine.Submit(ctx, r)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	got := &answer{Tokens: []int32{}}
	for {
		e, err := stream.Next(ctx)
		if err != nil {
			return nil, err
		}
		if e.Err != nil {
			return nil, e.Err
		}
		got.Tokens = append(got.Tokens, e.Tokens...)
		got.Text += e.Text
		if !quiet {
			if _, err := io.WriteString(out, e.Text); err != nil {
				return nil, err
			}
		}
		if e.Done {
			got.Finish = string(e.Finish)
			return got, nil
		}
	}
}
